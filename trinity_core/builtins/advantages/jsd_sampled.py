"""The Jensen-Shannon divergence to a teacher, at the sampled token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit, along
from trinity_core.errors import ConfigError
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class SampledJSD(Advantage):
    """``A_t = −(1 − β)(log q − log m)`` at the sampled token, with student ``q = exp(old)``, teacher ``p`` and mixture
    ``m = β p + (1 − β) q``, at the call's temperature.

    In expectation over ``q`` the policy gradient of this credit is exactly that of
    ``−[β KL(p ‖ m) + (1 − β) KL(q ‖ m)]`` (arXiv:2306.13649, eq. 1): what the two terms bring through ``m`` cancels. Rewards
    are not read.

    >>> batch = AdvantageBatch.of([0, 0], teacher_logp=np.log([0.5, 0.1]), old_logp=np.log([0.5, 0.9]))
    >>> SampledJSD()(batch).advantage.round(4).tolist()  # m = .5: −½ log(.9 / .5)
    [-0.0, -0.2939]
    """

    reads_reward: ClassVar[bool] = False
    claims: ClassVar[frozenset[str]] = frozenset({"shift_invariant", "scale_invariant"})
    beside: ClassVar[tuple[str, ...]] = ("teacher.path=teacher",)

    beta: float = 0.5
    """Weight of the teacher in the mixture, between 0 and 1."""

    def __post_init__(self) -> None:
        if not 0 < self.beta < 1:
            raise ConfigError(
                f"advantage.beta: {self.beta}: at 0 and 1 the mixture is one of the two, and no credit is left. Write a number "
                "between, or advantage=on_policy_distill"
            )

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp", "teacher_logp"})

    def __call__(self, batch: AdvantageBatch) -> Credit:
        own_N, student_N, teacher_N = along.own(batch), batch.tokens["old_logp"], batch.tokens["teacher_logp"]
        mixture_N = np.logaddexp(teacher_N + math.log(self.beta), student_N + math.log1p(-self.beta))
        return Credit(np.where(own_N, -(1.0 - self.beta) * (student_N - mixture_N), 0.0), per="token")
