"""The surrogate of the softmax representation, with a trust region."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class SimplifiedPPO(Loss):
    """``−A d · [1/(1 + ε) ≤ r ≤ 1 + ε]`` with ``d = logp − old``, ``r = exp(d)`` (sPPO, arXiv:2108.05828), per token.

    The logarithm of the ratio stands where PPO has the ratio, and outside the range there is no gradient whatever the sign
    of the advantage: the gradient of ``−A log(clip(r, 1/(1 + ε), 1 + ε))``. The metrics count tokens outside:
    ``clipped_high`` where ``A > 0``, ``clipped_low`` where ``A < 0``.
    (Self-play preference optimization is ``loss=sppo``.)
    """

    claims: ClassVar[frozenset[str]] = frozenset(
        {"inert_at_zero_advantage", "policy_gradient_at_ratio_1", "reads_old_logp"}
    )

    epsilon: float = 0.3
    """Half-width ε of the range of ratios, the same both ways in logarithm. Above 0."""

    def __post_init__(self) -> None:
        if self.epsilon <= 0:
            raise ConfigError(f"loss.epsilon: {self.epsilon} must be above 0")

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        ratio_N, advantage_N = batch.ratio_N, batch.advantage_N
        log_ratio_N = batch.logp_N - batch.old_logp_N
        outside_N = (ratio_N < 1 / (1 + self.epsilon)) | (ratio_N > 1 + self.epsilon)
        loss_N = torch.where(outside_N, torch.zeros_like(log_ratio_N), -advantage_N * log_ratio_N)
        return LossOutput.per_token(
            loss_N, clipped_high=outside_N & (advantage_N > 0), clipped_low=outside_N & (advantage_N < 0)
        )
