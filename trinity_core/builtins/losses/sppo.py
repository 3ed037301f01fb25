"""Self-play preference optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class SPPO(Loss):
    """``(Σ_t d − η (p̂ − ½))²`` with ``d = logp − old``, per sequence (arXiv:2405.00675, eq. 4.7).

    ``p̂`` is how often the attempt wins against the others of its group; ``p̂ − ½`` comes as the advantage
    (``advantage=win_rate``). ``old`` is the policy that the iteration starts from, frozen: nothing is clamped, and the gradient
    pulls ``Σ_t d`` to its target from both sides. Of an attempt with several sequences each is regressed by itself.
    """

    scope: ClassVar[Any] = "sequence"
    unit: ClassVar[Any] = "sequence"
    reduction: ClassVar[str] = "seq_mean_token_sum"
    beside: ClassVar[tuple[str, ...]] = ("algorithm.reduction=null",)
    claims: ClassVar[frozenset[str]] = frozenset({"reads_old_logp"})

    eta: float = 1e3
    """Log-ratio, in nats, of an attempt that always wins against one that always loses."""

    def __post_init__(self) -> None:
        if self.eta <= 0:
            raise ConfigError(f"loss.eta: must be more than 0, got {self.eta}")

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        moved_B = batch.seq_sum(batch.logp_N - batch.old_logp_N)
        target_B = self.eta * batch.seq_mean(batch.advantage_N)
        return LossOutput.per_sequence((moved_B - target_B) ** 2, moved=moved_B, target=target_B)
