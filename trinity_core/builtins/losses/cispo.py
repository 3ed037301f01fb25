"""Policy gradient whose importance weight is clipped, never its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class CISPO(Loss):
    """``−sg(clip(r, 1 − low, 1 + high)) A logp`` with ``r = exp(logp − old)`` (CISPO, arXiv:2506.13585), per token.

    Every token keeps a gradient. The metrics count weights that were clipped, at either end: ``clipped_high`` where
    ``A > 0``, ``clipped_low`` where ``A < 0``.
    """

    claims: ClassVar[frozenset[str]] = frozenset(
        {"inert_at_zero_advantage", "policy_gradient_at_ratio_1", "reads_old_logp"}
    )

    clip_low: float | None = None
    """Weights are at least ``1 − clip_low``; ``None``: no lower bound."""
    clip_high: float = 0.28
    """Weights are at most ``1 + clip_high``."""

    def __post_init__(self) -> None:
        if self.clip_high < 0 or (self.clip_low is not None and self.clip_low < 0):
            raise ConfigError(
                f"loss.clip_low={self.clip_low}, loss.clip_high={self.clip_high}: widths of the clip range are 0 or more"
            )

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        ratio_N, advantage_N = batch.ratio_N, batch.advantage_N
        low = None if self.clip_low is None else 1 - self.clip_low
        weight_N = batch.detach(ratio_N.clamp(low, 1 + self.clip_high))
        cut_N = weight_N != ratio_N
        return LossOutput.per_token(
            -weight_N * advantage_N * batch.logp_N,
            clipped_high=cut_N & (advantage_N > 0),
            clipped_low=cut_N & (advantage_N < 0),
        )
