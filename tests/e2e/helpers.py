"""Runs of the command, as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FAKE = ("model=fake", "backend=fake", "engine=fake")
"""A table policy: a whole run takes a second."""
DIGITS = (
    "taskset=[]",
    "+taskset@tasksets.digits=trinity_core.testing.fakes:Digits",
    "sampling.max_response=2",
    "optim.lr=0.3",
    "groups_per_step=4",
    "algorithm.group_size=8",
)
"""A taskset that the table policy can learn."""


def trinity(
    *words: str, cwd: Path, check: bool = True, timeout: float = 240, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``trinity WORDS`` in ``cwd``; a failure shows what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "trinity_core.cli", *words],
        cwd=cwd,
        text=True,
        capture_output=True,
        timeout=timeout,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}),
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"trinity {' '.join(words)} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
    return done


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    """The same in the background, its output in ``cwd/<pid>.log``."""
    log = open(cwd / f"log-{len(list(cwd.glob('log-*')))}.txt", "w")  # noqa: SIM115 - it lives as long as the process
    return subprocess.Popen(
        [sys.executable, "-m", "trinity_core.cli", *words],
        cwd=cwd,
        text=True,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def digest(run: Path) -> str:
    return trinity("digest", str(run), cwd=run.parent).stdout.strip()
