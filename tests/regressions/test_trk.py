"""Rows of the tracking table. The wandb rows are also read back from a real run in tests/trackers/test_wandb.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trinity_core.builtins.trackers.jsonl import Jsonl
from trinity_core.builtins.trackers.wandb import LiveWandb, Wandb
from trinity_core.testing.fakes import FakeRun

wandb: Any = pytest.importorskip("wandb", reason="pip install 'trinity-core[wandb]'")


class Recorded(LiveWandb):
    """A live tracker of a real disabled run; what it logs and how it starts is kept."""

    def __init__(self, run: FakeRun) -> None:
        super().__init__(Wandb(), run, wandb)
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.init: dict[str, Any] = {}

    def started(self, run: Any) -> None:
        real = wandb.init

        def init(**kwargs: Any) -> Any:
            self.init = kwargs
            return real(**kwargs)

        self._wandb = type("Library", (), {"init": staticmethod(init), "Settings": wandb.Settings})
        super().started(run)
        log = self._live.log

        def logged(*args: Any, **kwargs: Any) -> None:
            self.calls.append((args, kwargs))
            log(*args, **kwargs)

        self._live.log = logged


@pytest.fixture
def tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    live = Recorded(FakeRun(dir=tmp_path, id="run-1"))
    yield live
    live.close()


def test_no_row_is_logged_at_the_librarys_own_step(tracker):
    """TRK-01: a resume at step 203 after a crash at 249 logs 203 on its own axis; nothing is dropped as too old."""
    tracker.started({"config": {}, "resumed": True})
    for step in (248, 249, 203):
        tracker.step(step, {"loss": 1.0})
    assert all("step" not in kwargs and len(args) == 1 for args, kwargs in tracker.calls)
    assert [args[0]["train/step"] for args, _ in tracker.calls] == [248, 249, 203]


def test_an_evaluation_of_an_older_version_stands_at_that_version(tracker):
    """TRK-02: training and evaluation have an axis each, so an evaluation that ends late moves nothing."""
    tracker.started({"config": {}})
    tracker.step(12, {"loss": 1.0})
    tracker.evaluated(10, "heldout", {"accuracy": 0.5})
    tracker.step(13, {"loss": 1.0})
    rows = [args[0] for args, _ in tracker.calls]
    assert rows[1] == {"eval/step": 10, "eval/heldout/accuracy": 0.5}
    assert not any("eval/step" in row and "train/step" in row for row in rows)


def test_late_events_keep_their_own_step_in_the_file(tmp_path):
    """TRK-02: the same for metrics.jsonl, which one process writes."""
    live = Jsonl().open(FakeRun(dir=tmp_path))
    live.step(12, {"loss": 1.0})
    live.evaluated(10, "heldout", {"accuracy": 0.5})
    live.close()
    found = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["event"], line["step"]) for line in found] == [("step", 12), ("evaluated", 10)]


def test_a_resume_goes_on_with_the_same_id_without_any_environment_variable(tracker, tmp_path, monkeypatch):
    """TRK-03: the id is in the saved state; the library is told to go on where it exists."""
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    monkeypatch.delenv("WANDB_RESUME", raising=False)
    again = Recorded(FakeRun(dir=tmp_path, id="another"))
    again.load_state_dict(tracker.state_dict())
    again.started({"config": {}, "resumed": True})
    again.close()
    assert again.init["id"] == "run-1" and again.init["resume"] == "allow"


def test_a_run_killed_before_its_first_checkpoint_keeps_its_id_too(tmp_path):
    """TRK-03: without a saved state the id follows from the run's own, which a resume keeps."""
    ids = {LiveWandb(Wandb(), FakeRun(dir=tmp_path, id="run-1"), wandb).id for _ in range(2)}
    assert ids == {"run-1"}
