"""Identity preference optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.algo.preference import implicit_rewards
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class IPO(Loss):
    """``(Δ − 1 / (2β))²`` with ``Δ = Σ(logp − ref)_chosen − Σ(logp − ref)_rejected``, per pair (arXiv:2310.12036, eq. 17).

    The margin has a target instead of a slope without end. Sums over the action tokens of each side, as in the paper, where an
    answer is one action; nothing is divided by a length and nothing is clamped. Metrics are in units of reward:
    ``β Σ(logp − ref)`` of both sides, their margin (its target is one half), and how often it is positive.
    """

    reads_advantage: ClassVar[bool] = False
    scope: ClassVar[Any] = "pair"
    unit: ClassVar[Any] = "pair"
    beside: ClassVar[tuple[str, ...]] = ("advantage=null", "operator=[best_worst]", "algorithm.reduction=null")

    beta: float = 0.1
    """The paper's τ: Δ is drawn to ``1 / (2β)`` nats."""

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ConfigError(f"loss.beta: must be more than 0, got {self.beta}")

    def needs(self) -> frozenset[str]:
        return frozenset({"pairs", "ref_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        rewards = implicit_rewards(batch, self.beta)
        margin_P = rewards["margin"]
        return LossOutput.per_pair(
            ((margin_P - 0.5) / self.beta) ** 2,
            **rewards,
        )
