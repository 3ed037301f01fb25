"""Hinge loss on preferences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.algo.preference import implicit_rewards
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class Hinge(Loss):
    """``max(0, 1 − β Δ)`` with ``Δ = Σ(logp − ref)_chosen − Σ(logp − ref)_rejected``, per pair (hinge-norm, arXiv:2309.06657).

    A pair whose margin is wide enough has no gradient. Sums over the action tokens of each side, nothing is clamped. Metrics
    are in units of reward: ``β Σ(logp − ref)`` of both sides, their margin, and how often it is positive.
    """

    reads_advantage: ClassVar[bool] = False
    scope: ClassVar[Any] = "pair"
    unit: ClassVar[Any] = "pair"
    beside: ClassVar[tuple[str, ...]] = ("advantage=null", "operator=[best_worst]", "algorithm.reduction=null")

    beta: float = 0.1
    """Margin per nat: Δ of ``1 / β`` nats is wide enough."""

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ConfigError(f"loss.beta: must be more than 0, got {self.beta}")

    def needs(self) -> frozenset[str]:
        return frozenset({"pairs", "ref_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        rewards = implicit_rewards(batch, self.beta)
        margin_P = rewards["margin"]
        return LossOutput.per_pair(
            (1 - margin_P).clamp(min=0),
            **rewards,
        )
