"""The policy's own attempts and an expert's, with a weight that changes over the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trinity_core.algo import LossBatch, LossOutput, Term
from trinity_core.algo.surrogate import clipped, cut_off
from trinity_core.config.schema import PeakSchedule
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class Chord(Loss):
    """``(1 − μ) · max(−A r, −A clip(r, 1 − low, 1 + high))`` over own tokens ``+ μ · (−sg(p (1 − p)) logp)`` over expert tokens.

    CHORD (arXiv:2508.11408): PPO and maximum likelihood that favours tokens the policy is undecided about, each
    reduced over its own population. ``mu`` may follow a schedule, from much imitation to little. A population without tokens
    gives 0 and leaves the other's weight as it is.
    """

    claims: ClassVar[frozenset[str]] = frozenset({"reads_old_logp"})
    beside: ClassVar[tuple[str, ...]] = (
        "+taskset@tasksets.expert=numbers",
        "tasksets.expert.demonstrations=true",
    )

    mu: float | PeakSchedule = 0.1
    """Weight of the expert's term; the policy's own has ``1 − mu``. A schedule: ``{peak: 0.9, valley: 0.05, warmup: 20, decay: 200}``, in steps."""
    clip_low: float = 0.2
    """Ratios below ``1 − clip_low`` no longer lower the probability."""
    clip_high: float = 0.2
    """Ratios above ``1 + clip_high`` no longer raise the probability."""

    def __post_init__(self) -> None:
        weights = (self.mu.peak, self.mu.valley) if isinstance(self.mu, PeakSchedule) else (self.mu,)
        if not all(0 <= weight <= 1 for weight in weights):
            raise ConfigError(f"loss.mu: a weight from 0 to 1, got {self.mu}")
        if self.clip_low < 0 or self.clip_high < 0:
            raise ConfigError(
                f"loss.clip_low={self.clip_low}, loss.clip_high={self.clip_high}: widths of the clip range are 0 or more"
            )

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp", "expert"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        if isinstance(self.mu, PeakSchedule):
            raise ConfigError(
                "loss.mu: a schedule has no value of its own. Take config.schedule.at_step(loss, step) first"
            )
        logp_N = batch.logp_N
        p_N = batch.detach(logp_N.exp())
        own = Term("policy", clipped(batch, self.clip_low, self.clip_high), over="own", coef=1 - self.mu)
        expert = Term("expert", -p_N * (1 - p_N) * logp_N, over="expert", coef=self.mu, policy=False)
        return LossOutput([own, expert], cut_off(batch, self.clip_low, self.clip_high, over="own"))
