"""The worker threads of numerical libraries, one set for each thread that computes.

GNU OpenMP keeps the workers of a thread for its next computation, where they wait for a millisecond or so before they sleep. While there are
more of them than cores, over all threads of the process, they hardly wait at all, and every small step pays for waking them:
a decode step of 30 layers on two cores takes 104 ms then instead of 65. A run computes in three threads, where it opens its parts,
where it trains and where it samples, mostly one at a time; so each gives its workers back when it is done.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

MAPS = Path("/proc/self/maps")


def release_workers() -> bool:
    """End the OpenMP workers that wait for the calling thread; its next computation starts new ones (some 0.1 ms). Returns whether
    there was anything to ask: not without torch, nor on systems where it brings another OpenMP."""
    libraries = _libraries() if "torch" in sys.modules else ()
    answers = [library.omp_pause_resource_all(1) for library in libraries]
    return 0 in answers


@cache
def _libraries() -> tuple[Any, ...]:
    """Every GNU OpenMP that this process has loaded."""
    try:
        paths = {line.split(maxsplit=5)[-1] for line in MAPS.read_text().splitlines() if "/libgomp" in line}
    except OSError:
        return ()
    loaded = [ctypes.CDLL(path) for path in sorted(paths)]
    return tuple(library for library in loaded if hasattr(library, "omp_pause_resource_all"))
