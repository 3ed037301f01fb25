"""Policy gradient with importance weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class ImportanceSampling(Loss):
    """``−A r`` with ``r = exp(logp − old)``, per token: PPO without its clip (arXiv:1707.06347, eq. 6)."""

    claims: ClassVar[frozenset[str]] = frozenset(
        {"inert_at_zero_advantage", "policy_gradient_at_ratio_1", "reads_old_logp"}
    )

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        return LossOutput.per_token(-batch.advantage_N * batch.ratio_N)
