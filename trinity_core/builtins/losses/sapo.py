"""Policy gradient behind a soft gate instead of a clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class SAPO(Loss):
    """``−A f(r)`` with ``f(r) = σ(τ (r − 1)) · 4 / τ``, ``r = exp(logp − old)``, ``τ = tau_pos`` where ``A > 0``, else
    ``tau_neg`` (SAPO, arXiv:2511.20347), per token.

    The gradient goes **through** ``f``: its weight is ``r · sech²(τ (r − 1) / 2)``, 1 at ``r = 1`` and falling smoothly on
    both sides. A gate taken as a constant is another loss. Nothing is clipped, so no share is reported.
    """

    reduction: ClassVar[str] = "seq_mean_token_mean"
    claims: ClassVar[frozenset[str]] = frozenset(
        {"inert_at_zero_advantage", "policy_gradient_at_ratio_1", "reads_old_logp"}
    )

    tau_pos: float = 1.0
    """Temperature for positive advantages: the larger, the narrower the gate. Above 0."""
    tau_neg: float = 1.05
    """Temperature for negative advantages; above ``tau_pos`` their gradient fades sooner. Above 0."""

    def __post_init__(self) -> None:
        if self.tau_pos <= 0 or self.tau_neg <= 0:
            raise ConfigError(f"loss.tau_pos={self.tau_pos}, loss.tau_neg={self.tau_neg}: temperatures are above 0")

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        advantage_N = batch.advantage_N
        positive_N = advantage_N > 0
        tau_N = torch.where(positive_N, torch.full_like(advantage_N, self.tau_pos), self.tau_neg)
        gate_N = torch.sigmoid(tau_N * (batch.ratio_N - 1)) * (4 / tau_N)
        return LossOutput.per_token(-advantage_N * gate_N)
