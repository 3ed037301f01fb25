"""Tapered off-policy REINFORCE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class TOPR(Loss):
    """``−sg(α) R logp`` with ``α = clip(exp(Σ_t d), 0, 1)`` of the whole trajectory where ``R ≤ threshold``, else 1;
    ``d = logp − old`` (TOPR, arXiv:2503.14286), per token.

    ``R`` is the attempt's reward, not its advantage: what succeeded is learned whoever sampled it, what failed only as far as
    the policy would still say it. Failures therefore need rewards below 0 to push anything away. A trajectory is one
    experience; one without a score has value 0. ``clipped_low``: share of tokens whose ratio was cut to 1.
    """

    reads_advantage: ClassVar[bool] = False
    beside: ClassVar[tuple[str, ...]] = ("advantage=null",)
    scope: ClassVar[Any] = "sequence"
    reduction: ClassVar[str] = "seq_mean_token_sum"
    claims: ClassVar[frozenset[str]] = frozenset({"reads_old_logp"})

    threshold: float = 0.0
    """Rewards up to this one are tapered."""

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        reward_N = batch.spread(batch.reward_B).nan_to_num(nan=0.0)
        failed_N = reward_N <= self.threshold
        log_ratio_N = batch.spread(batch.seq_sum(batch.detach(batch.logp_N) - batch.old_logp_N))
        tapered_N = log_ratio_N.clamp(-20.0, 20.0).exp().clamp(max=1.0)
        weight_N = torch.where(failed_N, tapered_N, torch.ones_like(tapered_N))
        return LossOutput.per_token(
            -weight_N * reward_N * batch.logp_N, clipped_low=failed_N & (log_ratio_N > 0) & (reward_N != 0)
        )
