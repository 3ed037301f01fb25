"""Tapered REINFORCE with a ratio for each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class TokenTOPR(Loss):
    """``−sg(α) R logp`` with ``α = clip(exp(d), 0, 1)`` of each token where ``R ≤ threshold``, else 1; ``d = logp − old``.

    Another algorithm than TOPR (arXiv:2503.14286), whose ratio is the whole trajectory's; often shipped under its name.
    An attempt without a score has value 0. ``clipped_low``: share of tokens whose ratio was cut to 1.
    """

    reads_advantage: ClassVar[bool] = False
    beside: ClassVar[tuple[str, ...]] = ("advantage=null",)
    claims: ClassVar[frozenset[str]] = frozenset({"reads_old_logp"})

    threshold: float = 0.0
    """Rewards up to this one are tapered."""

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        reward_N = batch.spread(batch.reward_B).nan_to_num(nan=0.0)
        failed_N = reward_N <= self.threshold
        ratio_N = batch.detach(batch.ratio_N)
        weight_N = torch.where(failed_N, ratio_N.clamp(max=1.0), torch.ones_like(ratio_N))
        return LossOutput.per_token(
            -weight_N * reward_N * batch.logp_N, clipped_low=failed_N & (ratio_N > 1) & (reward_N != 0)
        )
