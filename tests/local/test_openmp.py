"""Workers of OpenMP: given back, and started again by the next computation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from trinity_core.openmp import release_workers

GNU = sys.platform == "linux" and "libgomp" in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(not GNU or (os.cpu_count() or 1) < 2, reason="needs GNU OpenMP and two cores")
def test_workers_are_given_back_and_come_again() -> None:
    torch.set_num_threads(2)
    x = torch.arange(1 << 20, dtype=torch.float32)

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    first = x.exp()
    busy = threads()
    assert release_workers() and threads() < busy
    assert torch.equal(x.exp(), first) and threads() == busy
