"""Policy gradient on the geometric mean of clipped ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class GeoMean(Loss):
    """``−A exp(mean_t x)``, ``x = sgn(A) · min(sgn(A) d, sgn(A) clip(d, −low, high))``, ``d = logp − old`` (GMPO,
    arXiv:2507.20673), per experience.

    Each token is clipped in logarithm, one-sided as PPO's, before the mean is taken. As with GSPO the value stands at every
    action token, as ``−A exp(x − sg(x) + sg(mean_t x))``: value and gradient of the token mean are those of the formula.
    """

    scope: ClassVar[Any] = "sequence"
    reduction: ClassVar[str] = "seq_mean_token_mean"
    claims: ClassVar[frozenset[str]] = frozenset(
        {"inert_at_zero_advantage", "policy_gradient_at_ratio_1", "reads_old_logp"}
    )

    clip_low: float = 0.4
    """Log-ratios below ``−clip_low`` no longer lower the probability."""
    clip_high: float = 0.4
    """Log-ratios above ``clip_high`` no longer raise the probability."""

    def __post_init__(self) -> None:
        if self.clip_low < 0 or self.clip_high < 0:
            raise ConfigError(
                f"loss.clip_low={self.clip_low}, loss.clip_high={self.clip_high}: widths of the clip range are 0 or more"
            )

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        advantage_N, d_N = batch.advantage_N, batch.logp_N - batch.old_logp_N
        sign_N = advantage_N.sign()
        clipped_N = d_N.clamp(-self.clip_low, self.clip_high)
        x_N = sign_N * torch.minimum(sign_N * d_N, sign_N * clipped_N)
        mean_N = batch.spread(batch.seq_mean(x_N))
        ratio_N = (x_N - batch.detach(x_N) + batch.detach(mean_N)).clamp(-20.0, 20.0).exp()
        high_N = (advantage_N > 0) & (d_N > self.clip_high)
        low_N = (advantage_N < 0) & (d_N < -self.clip_low)
        return LossOutput.per_token(-advantage_N * ratio_N, clipped_high=high_N, clipped_low=low_N)
