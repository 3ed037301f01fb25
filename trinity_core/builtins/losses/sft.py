"""Maximum likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class SFT(Loss):
    """``−logp``, per token: imitates every action token, sampled or given. Reads no advantage."""

    reads_advantage: ClassVar[bool] = False
    beside: ClassVar[tuple[str, ...]] = ("advantage=raft",)
    imitates: ClassVar[bool] = True

    def __call__(self, batch: LossBatch) -> LossOutput:
        return LossOutput.per_token(-batch.logp_N)
