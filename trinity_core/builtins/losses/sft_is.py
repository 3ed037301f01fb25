"""Maximum likelihood, weighted by the policy's own probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class SFTImportance(Loss):
    """``−sg(p) logp`` with ``p = exp(logp)``, per token: maximum likelihood with importance weights (arXiv:2508.11408).

    What the policy would never say is hardly learned; its gradient is that of ``−p``. Reads no advantage.
    """

    reads_advantage: ClassVar[bool] = False
    beside: ClassVar[tuple[str, ...]] = ("advantage=raft",)
    imitates: ClassVar[bool] = True

    def __call__(self, batch: LossBatch) -> LossOutput:
        logp_N = batch.logp_N
        weight_N = batch.detach(logp_N.exp())
        return LossOutput.per_token(-weight_N * logp_N, weight=weight_N)
