"""Policy gradient in a trust region of total variation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class DPPO(Loss):
    """``−A sg(min(r, cap)) logp · keep``, ``r = p / p_old``; a token is dropped where ``A > 0`` and ``p − p_old > δ``, or
    ``A < 0`` and ``p_old − p > δ`` (DPPO with binary total variation, arXiv:2602.04879), per token.

    ``p_old`` is the sampler's own probability, so the region also bounds what sampler and trainer disagree on: no correction
    is needed beside it. The distance is of probabilities, not of ratios: rare tokens may move by large factors, frequent ones
    may not move far. Tokens that nobody sampled have ratio 1 and are kept. ``clipped_high, clipped_low``: dropped tokens.
    """

    claims: ClassVar[frozenset[str]] = frozenset({"inert_at_zero_advantage", "policy_gradient_at_ratio_1"})

    delta: float = 0.15
    """Largest distance of probabilities δ, above 0 and below 1."""
    cap: float = 20.0
    """Largest ratio, 1 or more."""

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ConfigError(f"loss.delta: {self.delta} must be above 0 and below 1")
        if self.cap < 1:
            raise ConfigError(f"loss.cap: {self.cap} must be 1 or more")

    def needs(self) -> frozenset[str]:
        return frozenset({"sampler_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        advantage_N, now_N, sampler_N = batch.advantage_N, batch.detach(batch.logp_N), batch.sampler_logp_N
        old_N = torch.where(sampler_N.isnan(), now_N, sampler_N)
        ratio_N = (now_N - old_N).clamp(-20.0, 20.0).exp().clamp(max=self.cap)
        moved_N = now_N.exp() - old_N.exp()
        high_N = (advantage_N > 0) & (moved_N > self.delta)
        low_N = (advantage_N < 0) & (moved_N < -self.delta)
        loss_N = -advantage_N * ratio_N * batch.logp_N
        loss_N = torch.where(high_N | low_N, torch.zeros_like(loss_N), loss_N)
        return LossOutput.per_token(loss_N, clipped_high=high_N, clipped_low=low_N)
