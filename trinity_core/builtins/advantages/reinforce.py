"""No baseline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class Reinforce(Advantage):
    """``A = R``, per attempt (Williams, 1992). Attempts that do not count (greedy, expert, without score) get 0.

    >>> Reinforce()(AdvantageBatch.of([1, None, -2])).advantage.tolist()
    [1.0, 0.0, -2.0]
    """

    def __call__(self, batch: AdvantageBatch) -> Credit:
        return Credit(np.where(batch.baseline_A, batch.reward_A, 0.0))
