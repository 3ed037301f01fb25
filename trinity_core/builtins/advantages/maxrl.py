"""Maximum-likelihood reinforcement learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit, groups
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class MaxRL(Advantage):
    """``A = (R − mean_G) / mean_G``, per attempt; 0 where no attempt succeeded (MaxRL, arXiv:2602.02710, its on-policy estimator).

    With rewards 0 and 1 this is the gradient of a truncated log-likelihood of success: rare successes weigh more. Rewards are
    0 or more; groups whose mean is not above 0 get 0, and ``negative_rewards`` counts attempts that break the rule.

    >>> MaxRL()(AdvantageBatch.of([[1, 0, 0, 0], [0, 0]])).advantage.tolist()
    [3.0, -1.0, -1.0, -1.0, 0.0, 0.0]
    """

    claims: ClassVar[frozenset[str]] = frozenset({"zero_on_constant_group", "scale_invariant", "needs_group"})

    def __call__(self, batch: AdvantageBatch) -> Credit:
        mean_A = groups.total(batch, batch.reward_A) / np.maximum(groups.count(batch), 1)
        positive_A = mean_A > 0
        negative = int((batch.reward_A[batch.baseline_A] < 0).sum())
        return Credit(
            np.where(positive_A, groups.centered(batch) / np.where(positive_A, mean_A, 1.0), 0.0),
            metrics={"negative_rewards": float(negative)},
        )
