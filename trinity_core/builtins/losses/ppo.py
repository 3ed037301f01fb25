"""Clipped policy-gradient loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class PPOClip(Loss):
    """``max(−A r, −A clip(r, 1 − low, 1 + high))`` with ``r = exp(logp − old)`` (PPO, arXiv:1707.06347, eq. 7), per token.

    ``clip_high`` above ``clip_low`` is clip-higher (arXiv:2503.14476). With ``dual_clip c`` the value is at most ``−A c``
    where ``A < 0`` (arXiv:1912.09729, eq. 5).
    """

    claims: ClassVar[frozenset[str]] = frozenset(
        {"inert_at_zero_advantage", "policy_gradient_at_ratio_1", "reads_old_logp"}
    )

    clip_low: float = 0.2
    """Ratios below ``1 − clip_low`` no longer lower the probability."""
    clip_high: float = 0.2
    """Ratios above ``1 + clip_high`` no longer raise the probability."""
    dual_clip: float | None = None
    """Bound for negative advantages, above 1; ``None``: none."""

    def __post_init__(self) -> None:
        if self.clip_low < 0 or self.clip_high < 0:
            raise ConfigError(
                f"loss.clip_low={self.clip_low}, loss.clip_high={self.clip_high}: widths of the clip range are 0 or more"
            )
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ConfigError(
                f"loss.dual_clip: {self.dual_clip} must be above 1 (or null): at 1 and below it cuts the gradient on-policy"
            )

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        ratio_N, advantage_N = batch.ratio_N, batch.advantage_N
        clipped_N = ratio_N.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss_N = torch.maximum(-advantage_N * ratio_N, -advantage_N * clipped_N)
        if self.dual_clip is not None:
            loss_N = torch.where(advantage_N < 0, torch.minimum(loss_N, -advantage_N * self.dual_clip), loss_N)
        high_N = (advantage_N > 0) & (ratio_N > 1 + self.clip_high)
        low_N = (advantage_N < 0) & (ratio_N < 1 - self.clip_low)
        return LossOutput.per_token(loss_N, clipped_high=high_N, clipped_low=low_N)
