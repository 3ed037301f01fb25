"""Maximum likelihood, weighted towards tokens the policy is undecided about."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class SFTPhi(Loss):
    """``−sg(p (1 − p)) min(logp, log cutoff)`` with ``p = exp(logp)``, per token (CHORD-φ, arXiv:2508.11408).

    ``φ = p (1 − p)`` is largest at one half: neither what the policy says anyway nor what it would never say is pushed.
    Reads no advantage.
    """

    reads_advantage: ClassVar[bool] = False
    beside: ClassVar[tuple[str, ...]] = ("advantage=raft",)
    imitates: ClassVar[bool] = True

    cutoff: float = 1.0
    """Tokens likelier than this have no gradient; 1: all have one."""

    def __post_init__(self) -> None:
        if not 0 < self.cutoff <= 1:
            raise ConfigError(f"loss.cutoff: a probability above 0 and at most 1, got {self.cutoff}")

    def __call__(self, batch: LossBatch) -> LossOutput:
        logp_N = batch.logp_N
        p_N = batch.detach(logp_N.exp())
        phi_N = p_N * (1 - p_N)
        if self.cutoff < 1:
            logp_N = logp_N.clamp(max=math.log(self.cutoff))
        return LossOutput.per_token(-phi_N * logp_N, weight=phi_N)
