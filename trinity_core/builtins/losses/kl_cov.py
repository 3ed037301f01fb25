"""Policy gradient with a tie to the old policy where it would cost the most entropy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.algo.surrogate import covariance, first, own, share_of
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class KLCov(Loss):
    """``−A r``, and ``−A r + coef |logp − old|`` at the ``⌊share · N⌋`` tokens with the largest ``Cov``.

    ``Cov = (logp − mean logp)(A − mean A)`` over the N own action tokens of the whole update (KL-Cov, arXiv:2505.22617,
    eqs. 10, 13 and 14; listing 1 has ``|logp − old|`` for its KL(old ‖ π)). There is no clip. Of equal covariances a random one comes first.
    In an update of fewer than ``1 / share`` tokens none is tied. Where the policy is the old one the tie has no gradient.
    """

    scope: ClassVar[Any] = "batch"
    claims: ClassVar[frozenset[str]] = frozenset({"policy_gradient_at_ratio_1", "reads_old_logp"})

    share: float = 2e-3
    """Tokens that are tied, as a share of all own ones."""
    coef: float = 1.0
    """Strength of the tie, per nat."""

    @classmethod
    def example(cls, tmp: Path) -> KLCov:
        """One that ties tokens of a small update too."""
        return cls(share=0.25)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"loss.share: a share from 0 to 1, got {self.share}")
        if self.coef < 0:
            raise ConfigError(f"loss.coef: at least 0, got {self.coef}")

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        number = share_of(self.share, int(own(batch).sum()))
        tied_N = first(batch.uniform_N, -covariance(batch), number)
        distance_N = (batch.logp_N - batch.old_logp_N).abs()
        loss_N = -batch.advantage_N * batch.ratio_N
        return LossOutput.per_token(torch.where(tied_N, loss_N + self.coef * distance_N, loss_N), tied=tied_N)
