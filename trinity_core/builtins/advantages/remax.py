"""The greedy attempt as baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit, groups
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class ReMax(Advantage):
    """``A = R − R_greedy``, per attempt, with the reward of the group's greedy attempt (ReMax, arXiv:2310.10505, algorithm 1).

    The greedy attempt is played for the baseline alone and gets no credit. A group whose greedy attempt has no score is left
    out: its attempts get 0, and ``groups_without_greedy`` counts it.

    >>> ReMax()(AdvantageBatch.of([1, 0, 0.25], role_A=["sample", "sample", "greedy"])).advantage.tolist()
    [0.75, -0.25, 0.0]
    """

    claims: ClassVar[frozenset[str]] = frozenset({"shift_invariant"})

    def needs(self) -> frozenset[str]:
        return frozenset({"greedy"})

    def __call__(self, batch: AdvantageBatch) -> Credit:
        base_A = batch.baseline_A
        greedy_A = (batch.role_A == "greedy") & np.isfinite(batch.reward_A)
        num_A = groups.total(batch, greedy_A, inside_A=greedy_A)
        baseline_A = groups.total(batch, batch.reward_A, inside_A=greedy_A) / np.maximum(num_A, 1)
        inside_A = base_A & (num_A > 0)
        reward_A = np.where(inside_A, batch.reward_A, 0.0)
        same_A = np.abs(reward_A - baseline_A) <= groups.TOLERANCE * np.maximum(np.abs(reward_A), np.abs(baseline_A))
        without = len(np.unique(batch.group_A[base_A & ~inside_A]))
        return Credit(
            np.where(inside_A & ~same_A, reward_A - baseline_A, 0.0), metrics={"groups_without_greedy": float(without)}
        )
