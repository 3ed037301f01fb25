"""The penalty for length."""

from __future__ import annotations

import numpy as np
import pytest

from trinity_core.builtins.rewards.overlong import Overlong
from trinity_core.errors import ConfigError
from trinity_core.types import Attempt, Experience, Origin


def attempt_with(actions: int, context: int = 5) -> Attempt:
    origin_T = np.array([Origin.CONTEXT] * context + [Origin.SAMPLED] * actions, np.uint8)
    size = len(origin_T)
    return Attempt([Experience(np.zeros(size, np.int32), origin_T, np.zeros(size, np.float32))])


# M = 100, C = 20: free up to 80; at 90 half way, (80 - 90) / 20 = -0.5; at 100 (80 - 100) / 20 = -1; beyond -1.
@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (101, -1.0), (500, -1.0)]
)
def test_overlong_falls_linearly_over_its_buffer(length, penalty):
    score = Overlong(max_tokens=100, buffer=20)(attempt_with(length))
    assert score.value == pytest.approx(penalty) and score.parts["tokens"] == length


def test_overlong_counts_what_the_policy_wrote_and_not_its_prompt():
    assert Overlong(max_tokens=100, buffer=20)(attempt_with(80, context=1000)).value == 0.0


@pytest.mark.parametrize("buffer", [0, -1, 101])
def test_a_buffer_that_does_not_fit_is_refused(buffer):
    with pytest.raises(ConfigError, match=r"overlong\.buffer"):
        Overlong(max_tokens=100, buffer=buffer)
