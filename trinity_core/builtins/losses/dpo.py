"""Direct preference optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch.nn.functional import logsigmoid

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.algo.preference import implicit_rewards
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class DPO(Loss):
    """``−log σ(β Δ)`` with ``Δ = Σ(logp − ref)_chosen − Σ(logp − ref)_rejected``, per pair (arXiv:2305.18290, eq. 7).

    With ``label_smoothing ε``: ``−(1 − ε) log σ(β Δ) − ε log σ(−β Δ)`` (conservative DPO: labels are wrong with chance ε).
    Sums over the action tokens of each side, nothing is clamped. Metrics are in units of reward: ``β Σ(logp − ref)`` of both
    sides, their margin, and how often it is positive.
    """

    reads_advantage: ClassVar[bool] = False
    scope: ClassVar[Any] = "pair"
    unit: ClassVar[Any] = "pair"
    beside: ClassVar[tuple[str, ...]] = ("advantage=null", "operator=[best_worst]", "algorithm.reduction=null")

    beta: float = 0.1
    """Strength of the tie to the reference."""
    label_smoothing: float = 0.0
    """Chance that a label is wrong, below one half."""

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ConfigError(f"loss.beta: must be more than 0, got {self.beta}")
        if not 0 <= self.label_smoothing < 0.5:
            raise ConfigError(f"loss.label_smoothing: at least 0 and less than 0.5, got {self.label_smoothing}")

    def needs(self) -> frozenset[str]:
        return frozenset({"pairs", "ref_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        rewards = implicit_rewards(batch, self.beta)
        margin_P = rewards["margin"]
        return LossOutput.per_pair(
            -(1 - self.label_smoothing) * logsigmoid(margin_P) - self.label_smoothing * logsigmoid(-margin_P),
            **rewards,
        )
