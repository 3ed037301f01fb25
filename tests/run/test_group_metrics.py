"""What a lease looks like before training, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from trinity_core.run.credit import group_metrics
from trinity_core.testing.world import play
from trinity_core.types import Attempt, Fault, Ok


def test_lengths_parts_and_spread_are_over_sampled_attempts():
    rng = np.random.default_rng(0)
    flat = play(rng, [[2], [3, 1], [5]], name="g", roles=["sample", "sample", "greedy"])
    wide = play(rng, [[4], [1]], name="h")
    for attempt, score in zip(flat.attempts, (Ok(1.0, {"exact": 0.5}), Ok(1.0), Ok(9.0))):
        attempt.score = score
    wide.attempts[0].score, wide.attempts[1].score = Ok(4.0, {"exact": 1.0}), Fault("timeout")
    wide.attempts[0].experiences *= 2  # a branch: its tokens count as well
    wide.attempts[1].experiences[0].calls[-1].finish = "length"
    wide.attempts.append(Attempt(score=Ok(2.0)))  # nothing was said
    metrics = group_metrics([flat, wide])
    assert metrics == pytest.approx(
        {
            "groups/count": 2,
            "attempts/count": 5,
            "attempts/unscored": 1,
            "reward/mean": 2.0,
            "reward/std": 1.5**0.5,
            "reward/part/exact": 0.75,
            "response/length": (2 + 4 + 8 + 1 + 0) / 5,
            "response/length_max": 8,
            "response/truncated": 0.2,
            "response/branches": 0.2,
            "groups/zero_spread": 0.5,
        }
    )
    assert {type(value) for value in metrics.values()} == {float}
    assert group_metrics([]) == {"groups/count": 0, "attempts/count": 0, "attempts/unscored": 0}
