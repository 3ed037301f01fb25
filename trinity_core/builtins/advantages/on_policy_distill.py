"""Distillation on the policy's own samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit, along
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class OnPolicyDistill(Advantage):
    """``A_t = coef · (teacher_t − old_t)``, per action token, both log-probabilities at the call's temperature: the policy
    gradient of the reverse KL, ``KL(π ‖ teacher)`` (arXiv:2306.13649, sec. 3, on-policy samples).

    Rewards are not read.

    >>> batch = AdvantageBatch.of([0, 0], teacher_logp=[-1.0, -3.0], old_logp=[-2.0, -2.5])
    >>> OnPolicyDistill()(batch).advantage.tolist()
    [1.0, -0.5]
    """

    reads_reward: ClassVar[bool] = False
    claims: ClassVar[frozenset[str]] = frozenset({"shift_invariant", "scale_invariant"})
    beside: ClassVar[tuple[str, ...]] = ("teacher.path=teacher",)

    coef: float = 1.0
    """Factor of the credit."""

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp", "teacher_logp"})

    def __call__(self, batch: AdvantageBatch) -> Credit:
        own_N = along.own(batch)
        gap_N = np.where(own_N, batch.tokens["teacher_logp"] - batch.tokens["old_logp"], 0.0)
        metrics = {"reverse_kl": float(-gap_N[own_N].mean())} if own_N.any() else {}
        return Credit(self.coef * gap_N, per="token", metrics=metrics)
