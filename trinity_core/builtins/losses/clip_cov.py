"""PPO without the tokens that would cost the most entropy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.algo.surrogate import clipped, covariance, cut_off, first, own, share_of
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class ClipCov(Loss):
    """``max(−A r, −A clip(r, 1 − low, 1 + high))``, and 0 at ``⌊share · N⌋`` tokens drawn from those with ``cov_low ≤ Cov ≤ cov_high``.

    ``Cov = (logp − mean logp)(A − mean A)`` over the N own action tokens of the whole update (Clip-Cov, arXiv:2505.22617,
    eqs. 10 to 12 and listing 1). Likely tokens that are rewarded take the most entropy with them: a random few of them are left out.
    In an update of fewer than ``1 / share`` tokens none is.
    """

    scope: ClassVar[Any] = "batch"
    claims: ClassVar[frozenset[str]] = frozenset({"inert_at_zero_advantage", "reads_old_logp"})

    share: float = 2e-4
    """Tokens left out, as a share of all own ones."""
    cov_low: float = 1.0
    """Smallest covariance of a token that may be left out."""
    cov_high: float = 5.0
    """Largest covariance of a token that may be left out."""
    clip_low: float = 0.2
    """Ratios below ``1 − clip_low`` no longer lower the probability."""
    clip_high: float = 0.2
    """Ratios above ``1 + clip_high`` no longer raise the probability."""

    @classmethod
    def example(cls, tmp: Path) -> ClipCov:
        """One that leaves out tokens of a small update too."""
        return cls(share=0.25, cov_low=0.0)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"loss.share: a share from 0 to 1, got {self.share}")
        if self.cov_low > self.cov_high:
            raise ConfigError(f"loss.cov_low: {self.cov_low} is more than loss.cov_high: {self.cov_high}")
        if self.clip_low < 0 or self.clip_high < 0:
            raise ConfigError(
                f"loss.clip_low={self.clip_low}, loss.clip_high={self.clip_high}: widths of the clip range are 0 or more"
            )

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        cov_N, own_N = covariance(batch), own(batch)
        may_N = own_N & (cov_N >= self.cov_low) & (cov_N <= self.cov_high)
        number = min(share_of(self.share, int(own_N.sum())), int(may_N.sum()))
        left_out_N = first(batch.uniform_N, (~may_N).to(cov_N.dtype), number)
        loss_N = clipped(batch, self.clip_low, self.clip_high)
        return LossOutput.per_token(
            torch.where(left_out_N, torch.zeros_like(loss_N), loss_N),
            left_out=left_out_N,
            **cut_off(batch, self.clip_low, self.clip_high),
        )
