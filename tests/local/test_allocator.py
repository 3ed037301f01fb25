"""Memory that is freed stays, where that is asked for."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import sys
import torch
from trinity_core.allocator import keep_freed_memory

assert sys.argv[1] == "plain" or keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    torch.ones(16 << 20)  # 64 MiB
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_the_next_array_of_a_size_meets_pages_that_are_there() -> None:
    """50 arrays of 64 MiB, one at a time: 3,200 MiB of pages that the system has to clear. Kept, a few of them are enough."""
    plain, kept = (
        int(subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True).stdout)
        for how in ("plain", "kept")
    )
    assert kept < plain / 3 or plain < 100, "a system with huge pages has few to clear"
