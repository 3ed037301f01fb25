"""The policy's own attempts and an expert's, in one update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trinity_core.algo import LossBatch, LossOutput, Term
from trinity_core.algo.surrogate import clipped, cut_off
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class Mix(Loss):
    """``(1 − μ) · max(−A r, −A clip(r, 1 − low, 1 + high))`` over own tokens ``+ μ · (−logp)`` over expert tokens.

    PPO (arXiv:1707.06347, eq. 7) and maximum likelihood, each reduced over its own population (arXiv:2508.11408): how
    many tokens the other has changes nothing. A population without tokens gives 0 and leaves the other's weight as it is.
    """

    claims: ClassVar[frozenset[str]] = frozenset({"reads_old_logp"})
    beside: ClassVar[tuple[str, ...]] = (
        "+taskset@tasksets.expert=numbers",
        "tasksets.expert.demonstrations=true",
    )

    mu: float = 0.1
    """Weight of the expert's term; the policy's own has ``1 − mu``."""
    clip_low: float = 0.2
    """Ratios below ``1 − clip_low`` no longer lower the probability."""
    clip_high: float = 0.2
    """Ratios above ``1 + clip_high`` no longer raise the probability."""

    def __post_init__(self) -> None:
        if not 0 <= self.mu <= 1:
            raise ConfigError(f"loss.mu: a weight from 0 to 1, got {self.mu}")
        if self.clip_low < 0 or self.clip_high < 0:
            raise ConfigError(
                f"loss.clip_low={self.clip_low}, loss.clip_high={self.clip_high}: widths of the clip range are 0 or more"
            )

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp", "expert"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        own = Term("policy", clipped(batch, self.clip_low, self.clip_high), over="own", coef=1 - self.mu)
        expert = Term("expert", -batch.logp_N, over="expert", coef=self.mu, policy=False)
        return LossOutput([own, expert], cut_off(batch, self.clip_low, self.clip_high, over="own"))
