"""The C allocator of the process: memory that a step frees is kept for the next step.

By default glibc maps each large array from the system and gives it back when it is freed, so every step of training pays anew for
zeroed pages: of SmolLM2's 540 MB of gradients and as much again of activations. That is a sixth of a step on two cores. Memory
that is kept is bounded by the largest step, as the peak was before.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # <malloc.h>
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Serve large arrays from one heap that does not shrink, for the rest of the process. Returns whether the C library took the
    settings: glibc's does; another one, or an allocator that was loaded in its place, goes by its own."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # Some versions take at most 32 MiB as the size from which arrays are mapped. Where it is not taken at all, the others would
    # only keep glibc from raising it by itself.
    if not any(mallopt(_MMAP_THRESHOLD, size) == 1 for size in (2**30, 2**25)):
        return False
    # One arena: the heaps of any other are too small for such arrays, which would be mapped from the system again.
    one, untrimmed = mallopt(_ARENA_MAX, 1) == 1, mallopt(_TRIM_THRESHOLD, _NEVER) == 1
    return one and untrimmed
