"""Checkpoints that are written while the run goes on."""

from __future__ import annotations

import json

import pytest

from tests.run import background_parts
from trinity_core.errors import CheckpointError, RunError
from trinity_core.run import checkpoint, start
from trinity_core.testing.fakes import config_for

WORDS = [
    "model=fake",
    "engine=fake",
    "tracker=[jsonl]",
    "taskset=[]",
    "+taskset@tasksets.digits=trinity_core.testing.fakes:Digits",
    "sampling.max_response=2",
    "optim.lr=0.3",
    "groups_per_step=4",
    "algorithm.group_size=4",
    "checkpoint.every=1",
]
PARTS = "tests.run.background_parts"


def run(out, *words: str):
    return start(config_for(*WORDS, *words), [*WORDS, *words], out=out)


def told(folder) -> list[tuple[str, int]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        (line["event"], line["step"]) for line in map(json.loads, lines) if line["event"] in ("step", "checkpointed")
    ]


def test_steps_go_on_while_a_checkpoint_is_written_and_the_end_waits_for_it(tmp_path):
    run(tmp_path / "out", f"backend={PARTS}:Slow", "steps=3", "checkpoint.every=2")
    # the second step's checkpoint is still being written when the third step ends
    assert told(tmp_path / "out") == [("step", 1), ("step", 2), ("step", 3), ("checkpointed", 2), ("checkpointed", 3)]
    assert checkpoint.newest(tmp_path / "out" / "checkpoints").name == "step-000003"


def test_one_checkpoint_is_written_at_a_time(tmp_path):
    background_parts.WRITING.clear()
    run(tmp_path / "out", f"backend={PARTS}:Slow", "steps=4", "backend.seconds=0.05")
    assert background_parts.WRITING == [1, 1, 1, 1]


def test_without_the_background_a_step_waits_for_its_checkpoint(tmp_path):
    run(tmp_path / "out", "backend=fake", "steps=2", "checkpoint.background=false")
    assert told(tmp_path / "out") == [("step", 1), ("checkpointed", 1), ("step", 2), ("checkpointed", 2)]


@pytest.mark.parametrize("every", [2, 5])
def test_a_checkpoint_that_cannot_be_written_stops_the_run(every, tmp_path):
    """In the middle of the run, and at its end."""
    out = tmp_path / "out"
    with pytest.raises(CheckpointError, match=rf"step-00000{every}: could not be written.*No space left"):
        run(out, f"backend={PARTS}:Full", "steps=5", f"checkpoint.every={every}", "backend.good=0")
    assert checkpoint.newest(out / "checkpoints") is None
    assert json.loads((out / "summary.json").read_text())["status"] == "failed"


def test_a_run_that_fails_still_waits_for_its_checkpoint(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(RunError, match="on purpose"):
        run(out, f"backend={PARTS}:Slow", "steps=3", "checkpoint.every=1", f"+tracker@trackers.ends={PARTS}:EndsAtTwo")
    assert checkpoint.newest(out / "checkpoints").name == "step-000001"
    assert checkpoint.load_state(out / "checkpoints" / "step-000001")["step"] == 1


def test_a_checkpoint_beside_the_run_holds_what_one_in_the_step_holds(tmp_path):
    for name, words in {
        "beside": [f"backend={PARTS}:Slow"],
        "inside": ["backend=fake", "checkpoint.background=false"],
    }.items():
        run(tmp_path / name, *words, "steps=3", "checkpoint.keep=3")
    for step in (1, 2, 3):
        beside, inside = (tmp_path / name / "checkpoints" / checkpoint.name_of(step) for name in ("beside", "inside"))
        for file in ("state.safetensors", "state.json"):
            assert (beside / "backend" / file).read_bytes() == (inside / "backend" / file).read_bytes()
        one, other = checkpoint.load_state(beside), checkpoint.load_state(inside)
        assert one["metrics_chain"] == other["metrics_chain"] and one["position"] == other["position"]
