"""The plain policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class PolicyGradient(Loss):
    """``−A logp``, per token: no ratio, no clip (Williams, 1992)."""

    claims: ClassVar[frozenset[str]] = frozenset({"inert_at_zero_advantage", "policy_gradient_at_ratio_1"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        return LossOutput.per_token(-batch.advantage_N * batch.logp_N)
