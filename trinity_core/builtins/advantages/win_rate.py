"""How often an attempt beats the others of its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit, groups
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class WinRate(Advantage):
    """``A_i = p̂_i − ½``, ``p̂_i`` the mean over the other attempts ``j`` of the group of ``[R_i > R_j] + ½ [R_i = R_j]``: the
    estimate of the probability to win that SPPO learns (arXiv:2405.00675, sec. 4, with the others of the group as opponents).

    Only the order of rewards counts. Rewards that differ by rounding are a draw; a group of one gets 0.

    >>> WinRate()(AdvantageBatch.of([[1, 0, 0, 0], [5]])).advantage.round(4).tolist()
    [0.5, -0.1667, -0.1667, -0.1667, 0.0]
    """

    claims: ClassVar[frozenset[str]] = frozenset(
        {"zero_on_constant_group", "shift_invariant", "scale_invariant", "needs_group"}
    )

    def __call__(self, batch: AdvantageBatch) -> Credit:
        base_A = batch.baseline_A
        rate_A = np.full(len(base_A), 0.5)
        for group in np.unique(batch.group_A[base_A]):
            members = np.flatnonzero(base_A & (batch.group_A == group))
            if len(members) < 2:
                continue
            rewards = batch.reward_A[members]
            gap = rewards[:, None] - rewards[None, :]
            equal = np.abs(gap) <= groups.TOLERANCE * np.abs(rewards).max()
            wins = np.where(equal, 0.5, gap > 0).sum(axis=1) - 0.5  # without the draw with itself
            rate_A[members] = wins / (len(members) - 1)
        return Credit(rate_A - 0.5)
