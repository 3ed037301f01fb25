"""While an evaluation holds the engine, nothing else is played."""

from __future__ import annotations

import pytest

from trinity_core.run import start
from trinity_core.run.audit import open_for_reading
from trinity_core.testing.fakes import config_for

WORDS = [
    "model=fake",
    "backend=fake",
    "engine=fake",
    "engine.latency_s=0.3",  # longer than an explorer waits before it looks again
    "tracker=[]",
    "taskset=[]",
    "+taskset@tasksets.digits=trinity_core.testing.fakes:Digits",
    "+taskset@eval.tasksets.digits=trinity_core.testing.fakes:Digits",
    "sampling.max_response=2",
    "groups_per_step=4",
    "algorithm.group_size=2",
    "steps=2",
    "eval.every=1",
    "eval.attempts=4",
    "explorer.wave=8",
]


@pytest.mark.slow
def test_no_draw_starts_while_an_evaluation_runs(tmp_path):
    summary = start(config_for(*WORDS), WORDS, out=tmp_path / "out")
    ledger = open_for_reading(tmp_path / "out")
    puts = [event for event in ledger.events() if event.event == "put"]
    ledger.close()
    # two steps of four groups: none of a third step, which the last evaluation gave time to play
    assert len(puts) == 8
    # three evaluations of five waves each are not training
    assert summary["train_seconds"] < summary["wall_seconds"] - 3 * 5 * 0.3
