"""Policy mirror descent with its tie to the reference written out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trinity_core.algo import LossBatch, LossOutput, Term
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class KimiOPMD(Loss):
    """``−A Σ_t logp + (τ / 2) (Σ_t (logp − ref))²`` per experience, the baseline in the advantage (Kimi k1.5,
    arXiv:2501.12599, eq. 3), as two terms per token.

    The square is of the whole sequence's log-ratio ``D = Σ_t (logp − ref)``: token t has the value ``(τ / 2) D (logp − ref)``,
    so that a sequence's values sum to ``(τ / 2) D²``. The minimum is at ``D = A / τ``. The paper's reference is the policy at
    the start of each iteration; here it is the run's reference model.
    """

    scope: ClassVar[Any] = "sequence"
    reduction: ClassVar[str] = "seq_mean_token_sum"
    claims: ClassVar[frozenset[str]] = frozenset()

    tau: float = 1.0
    """Strength τ of the tie. 0 or more."""

    def __post_init__(self) -> None:
        if self.tau < 0:
            raise ConfigError(f"loss.tau: {self.tau} must be 0 or more")

    def needs(self) -> frozenset[str]:
        return frozenset({"ref_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        away_N = batch.logp_N - batch.ref_logp_N
        tie_N = 0.5 * batch.spread(batch.seq_sum(away_N)) * away_N
        return LossOutput(
            [
                Term("policy", -batch.advantage_N * batch.logp_N, over="all"),
                Term("tie", tie_N, over="all", coef=self.tau, policy=False),
            ]
        )
