"""Workers of OpenMP: given back, and started again by the next computation."""

from __future__ import annotations

import os
import subprocess
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


@pytest.mark.parametrize(
    ("given", "turns"),
    [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
    ids=["ours", "theirs", "their policy"],
)
def test_workers_wait_as_long_as_the_user_says_else_briefly(given: dict[str, str], turns: str | None) -> None:
    """Where another program computes, a worker that turns takes the core that it waits for."""
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    words = "import os, trinity_core; print(os.environ.get('GOMP_SPINCOUNT'))"
    ran = subprocess.run([sys.executable, "-c", words], env=kept | given, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(turns)
