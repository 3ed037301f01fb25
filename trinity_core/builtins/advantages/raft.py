"""Learn from the attempts that succeeded, and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class RewardRanked(Advantage):
    """1 for attempts with ``R > threshold``; all other samples leave the update (RAFT, arXiv:2304.06767, algorithm 1, with
    a threshold in place of the best of K). What experts said stays: it was given to be imitated.

    >>> credit = RewardRanked()(AdvantageBatch.of([1, 0, None, 0.5]))
    >>> credit.advantage.tolist(), credit.keep_N.tolist()
    ([1.0, 0.0, 0.0, 1.0], [True, False, False, True])
    """

    selects: ClassVar[bool] = True

    threshold: float = 0.0
    """Rewards above it are successes."""

    def __call__(self, batch: AdvantageBatch) -> Credit:
        base_A = batch.baseline_A
        kept_A = base_A & (np.where(base_A, batch.reward_A, 0.0) > self.threshold)
        share = float(kept_A.sum()) / max(int(base_A.sum()), 1)
        keep_N = (kept_A | (batch.role_A == "expert"))[batch.attempt_N]
        return Credit(kept_A.astype(np.float64), keep_N=keep_N, metrics={"kept": share})
