"""The worker threads of numerical libraries, one set for each thread that computes.

GNU OpenMP keeps the workers of a thread for its next computation, where they wait for a millisecond or so before they sleep. While there are
more of them than cores, over all threads of the process, they hardly wait at all, and every small step pays for waking them:
a decode step of 30 layers on two cores takes 104 ms then instead of 65. A run computes in three threads, where it opens its parts,
where it trains and where it samples, mostly one at a time; so each gives its workers back when it is done.

How long they wait is set once, before any library reads it: 2,000 turns of a loop, some 20 microseconds, and not the default of
300,000. On idle cores nothing is lost. Where another program computes beside the run, a worker soon waits for one that has no
core, and turns keep that core busy: a step of the quickstart beside two busy processes took 16 s instead of 3.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

MAPS = Path("/proc/self/maps")
TURNS = "2000"


def wait_briefly() -> None:
    """Let workers that have nothing to do sleep soon, in this process and those it starts; settings of the user's stay as they are. No
    effect on a GNU OpenMP that is loaded already."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", TURNS)


def release_workers() -> bool:
    """End the OpenMP workers that wait for the calling thread; its next computation starts new ones (some 0.1 ms). Returns whether
    there was anything to ask: not without torch, nor on systems where it brings another OpenMP."""
    libraries = _libraries() if "torch" in sys.modules else ()
    answers = [library.omp_pause_resource_all(1) for library in libraries]
    return 0 in answers


@cache
def _libraries() -> tuple[Any, ...]:
    """Every GNU OpenMP that this process has loaded."""
    import ctypes  # not needed for as long as this module is only imported

    try:
        paths = {line.split(maxsplit=5)[-1] for line in MAPS.read_text().splitlines() if "/libgomp" in line}
    except OSError:
        return ()
    loaded = [ctypes.CDLL(path) for path in sorted(paths)]
    return tuple(library for library in loaded if hasattr(library, "omp_pause_resource_all"))
