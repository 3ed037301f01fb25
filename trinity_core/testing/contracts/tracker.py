"""What every tracker keeps to: it lives through any run, writes into the run folder alone, and changes nothing."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trinity_core.testing.fakes import FakeRun
from trinity_core.testing.rules import require
from trinity_core.testing.subject import close, plain

STARTED = {
    "id": "run",
    "dir": "",
    "config": {"seed": 0, "steps": 2, "loss": {"name": "ppo"}},
    "plan": {"parameters": 10},
    "manifest": {"trinity_core": "0"},
    "resumed": False,
}
EVALUATION = {"accuracy": 0.5, "ci_low": 0.4, "ci_high": 0.6, "n": 200}
SUMMARY = {"status": "done", "steps": 2, "train_seconds": 1.5, "seed": 0}


@contextmanager
def life(component: Any, folder: Path) -> Iterator[Any]:
    """One opened tracker with the current folder elsewhere, so that stray files can be seen."""
    folder.mkdir(parents=True, exist_ok=True)
    elsewhere = folder.parent / f"{folder.name}-elsewhere"
    elsewhere.mkdir()
    here = Path.cwd()
    os.chdir(elsewhere)
    try:
        live = component.open(FakeRun(dir=folder))
        try:
            yield live
        finally:
            close(live)
        stray = sorted(path.name for path in elsewhere.rglob("*"))
        require(not stray, f"it wrote {stray} into the current folder: everything of a run goes into run.dir")
    finally:
        os.chdir(here)


def timeline(live: Any, folder: Path, *, steps: int = 2, first: int = 1) -> None:
    """A whole run as a tracker sees it."""
    live.started({**STARTED, "dir": str(folder), "resumed": first > 1})
    live.progress({"phase": "play", "step": 0, "steps": steps, "groups": 1, "tokens": 10, "tokens_per_s": 5.0})
    live.evaluated(first - 1, "heldout", dict(EVALUATION))
    for step in range(first, first + steps):
        live.step(step, {"reward/mean": 0.5, "loss": -0.25, "grad_norm": float("nan"), "tokens": 100.0})
        live.checkpointed(step, str(folder / f"checkpoint-{step}"))
    live.warned("something the user should see")
    live.finished(dict(SUMMARY))


def lives_through_a_run(component: Any, tmp: Path) -> None:
    with life(component, tmp / "run") as live:
        timeline(live, tmp / "run")


def lives_through_a_failure(component: Any, tmp: Path) -> None:
    """A run may fail before its first step, and before it started."""
    with life(component, tmp / "early") as live:
        live.started(dict(STARTED))
        live.finished({"status": "failed", "steps": 0, "error": "ConfigError: …"})
    with life(component, tmp / "never"):
        pass


def lives_through_a_resume(component: Any, tmp: Path) -> None:
    """A second life in the same folder goes on; it does not refuse what it finds."""
    with life(component, tmp / "run") as live:
        timeline(live, tmp / "run")
        state = live.state_dict() if hasattr(live, "state_dict") else None
    (tmp / "run-elsewhere").rmdir()
    with life(component, tmp / "run") as live:
        if state is not None:
            live.load_state_dict(state)
        timeline(live, tmp / "run", first=3)


def changes_nothing_it_is_given(component: Any, tmp: Path) -> None:
    with life(component, tmp / "run") as live:
        given = [copy.deepcopy(STARTED), {"loss": 1.0, "reward/mean": 0.0}, dict(EVALUATION), dict(SUMMARY)]
        before = plain(given)
        live.started(given[0])
        live.step(1, given[1])
        live.evaluated(1, "heldout", given[2])
        live.finished(given[3])
        require(plain(given) == before, "a tracker changed the maps it was given; other trackers get the same ones")


RULES = {
    "lives through a run": lives_through_a_run,
    "lives through a failure": lives_through_a_failure,
    "lives through a resume": lives_through_a_resume,
    "changes nothing it is given": changes_nothing_it_is_given,
}
