"""metrics.jsonl, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trinity_core.builtins.trackers.jsonl import Jsonl
from trinity_core.errors import ConfigError, RunError
from trinity_core.testing.fakes import FakeRun


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON")) for line in text.splitlines()
    ]


def life(folder: Path, first: int, last: int, *, resumed: bool = False, finish: bool = True, saved: int = 0) -> None:
    live = Jsonl().open(FakeRun(dir=folder, step=first - 1))
    live.started({"id": "r", "mode": "both", "resumed": resumed, "step": first - 1, "config": {}, "plan": {}})
    for step in range(first, last + 1):
        live.step(step, {"loss": step / 10})
        live.evaluated(step, "heldout", {"accuracy": 0.5})
        if step <= saved:
            live.checkpointed(step, f"step-{step}")
    if finish:
        live.finished({"status": "finished", "steps": last})
        live.close()


def test_every_event_is_a_line_of_its_own(tmp_path):
    life(tmp_path, 1, 2, saved=1)
    assert [(line["event"], line.get("step")) for line in lines(tmp_path)] == [
        ("started", 0),
        ("step", 1),
        ("evaluated", 1),
        ("checkpointed", 1),
        ("step", 2),
        ("evaluated", 2),
        ("finished", None),
    ]


def test_a_line_is_on_disk_as_soon_as_it_is_written(tmp_path):
    live = Jsonl().open(FakeRun(dir=tmp_path))
    live.step(1, {"loss": 1.0})
    assert [line["loss"] for line in lines(tmp_path)] == [1.0]
    live.close()
    live.close()


def test_a_resume_drops_what_did_not_survive_and_nothing_else(tmp_path):
    life(tmp_path, 1, 5, finish=False, saved=3)
    life(tmp_path, 4, 6, resumed=True, saved=3)
    found = lines(tmp_path)
    assert [line["step"] for line in found if line["event"] == "step"] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in found if line["event"] == "evaluated"] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in found if line["event"] == "started"] == [0, 3]


def test_a_resume_without_a_checkpoint_starts_the_steps_again(tmp_path):
    life(tmp_path, 1, 2, finish=False)
    life(tmp_path, 1, 2, resumed=True)
    assert [line["step"] for line in lines(tmp_path) if line["event"] == "step"] == [1, 2]


def test_a_line_cut_by_a_kill_is_dropped(tmp_path):
    life(tmp_path, 1, 2, finish=False)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "step", "st')
    life(tmp_path, 3, 3, resumed=True)
    assert [line["step"] for line in lines(tmp_path) if line["event"] == "step"] == [1, 2, 3]


def test_a_file_that_is_not_ours_stops_the_resume_and_is_left_alone(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("loss,reward\n1,2\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl:1"):
        life(tmp_path, 3, 3, resumed=True)
    assert (tmp_path / "metrics.jsonl").read_text() == "loss,reward\n1,2\n"


def test_nothing_is_left_beside_the_file(tmp_path):
    life(tmp_path, 1, 2, finish=False)
    life(tmp_path, 1, 2, resumed=True)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_what_is_not_finite_is_null_and_named(tmp_path):
    live = Jsonl().open(FakeRun(dir=tmp_path))
    live.step(1, {"a": float("nan"), "b": float("inf"), "c": 1.0, "d": np.float32("nan"), "e": np.float64(2.0)})
    live.finished({"deep": {"list": [1.0, float("-inf")]}, "path": tmp_path})
    live.close()
    step, finished = lines(tmp_path)
    assert (step["a"], step["b"], step["c"], step["d"], step["e"]) == (None, None, 1.0, None, 2.0)
    assert step["nonfinite"] == ["a", "b", "d"]
    assert finished["deep"] == {"list": [1.0, None]} and finished["nonfinite"] == ["deep.list[1]"]


def test_a_run_that_fails_before_it_started_still_writes_its_end(tmp_path):
    live = Jsonl().open(FakeRun(dir=tmp_path))
    live.finished({"status": "failed", "error": "no model"})
    live.close()
    assert [(line["event"], line["status"]) for line in lines(tmp_path)] == [("finished", "failed")]


@pytest.mark.parametrize("file", ["", "../x.jsonl", "/tmp/x.jsonl", "a/b"])
def test_the_file_lies_in_the_run_folder(file):
    with pytest.raises(ConfigError, match=r"jsonl\.file"):
        Jsonl(file=file)
