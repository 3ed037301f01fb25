"""A real model learns, with the numbers that a user would see."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.e2e.helpers import trinity

pytestmark = [pytest.mark.slow, pytest.mark.both_cores]


@pytest.mark.timeout(900)
def test_smollm2_learns_the_first_letter_of_a_word(tmp_path):
    """Ten steps of GRPO on 64 samples each: by steps 7 to 10 most of them are right (they start near one in five)."""
    words = ("recipe=quickstart", "tasksets.numbers.kind=first_letter", "~eval.tasksets.heldout", "tracker=[jsonl]")
    words = (*words, "optim.warmup_updates=0")  # ten steps are too few to begin slowly
    trinity("run", *words, "steps=10", "seed=0", "out=out", cwd=tmp_path, timeout=850, env={"OMP_NUM_THREADS": "2"})
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward/mean"] for line in lines if line["event"] == "step"]
    assert len(rewards) == 10
    assert rewards[0] <= 0.5
    assert np.mean(rewards[6:10]) >= 0.85, rewards
