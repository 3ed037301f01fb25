"""Clipped policy gradient with one ratio for a whole sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class GSPO(Loss):
    """``max(−A s, −A clip(s, 1 − low, 1 + high))`` with ``s = exp(logp − sg(logp) + sg(mean_t d))``, ``d = logp − old``
    (GSPO-token, arXiv:2507.18071, eq. 13 and 14), per token.

    ``s`` is, in value, the geometric mean of the ratios of one experience's action tokens (eq. 7), the same at each of them;
    its gradient is that of each token's own log-probability. With one advantage per sequence, value and gradient of the
    token mean are those of GSPO (eq. 5). The mean over tokens is inside the exponent, so clip ranges are a thousandth of PPO's.
    """

    scope: ClassVar[Any] = "sequence"
    reduction: ClassVar[str] = "seq_mean_token_mean"
    claims: ClassVar[frozenset[str]] = frozenset(
        {"inert_at_zero_advantage", "policy_gradient_at_ratio_1", "reads_old_logp"}
    )

    clip_low: float = 3e-4
    """Ratios below ``1 − clip_low`` no longer lower the probability."""
    clip_high: float = 4e-4
    """Ratios above ``1 + clip_high`` no longer raise the probability."""

    def __post_init__(self) -> None:
        if self.clip_low < 0 or self.clip_high < 0:
            raise ConfigError(
                f"loss.clip_low={self.clip_low}, loss.clip_high={self.clip_high}: widths of the clip range are 0 or more"
            )

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        logp_N, advantage_N = batch.logp_N, batch.advantage_N
        mean_N = batch.spread(batch.seq_mean(logp_N - batch.old_logp_N))
        ratio_N = (logp_N - batch.detach(logp_N) + batch.detach(mean_N)).clamp(-20.0, 20.0).exp()
        clipped_N = ratio_N.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss_N = torch.maximum(-advantage_N * ratio_N, -advantage_N * clipped_N)
        high_N = (advantage_N > 0) & (ratio_N > 1 + self.clip_high)
        low_N = (advantage_N < 0) & (ratio_N < 1 - self.clip_low)
        return LossOutput.per_token(loss_N, clipped_high=high_N, clipped_low=low_N)
