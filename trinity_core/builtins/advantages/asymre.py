"""A baseline below the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit, groups
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class AsymmetricReinforce(Advantage):
    """``A = R − (mean_G + shift)``, per attempt (AsymRE, arXiv:2506.20520: ``A = r − V`` with ``V = mean + δV``).

    A ``shift`` below 0 learns more from successes than from failures. A group of equal rewards gets ``−shift``, by definition;
    an attempt alone in its group has nothing to be compared with and gets 0.

    >>> AsymmetricReinforce()(AdvantageBatch.of([[1, 0, 0, 0], [1, 1], [5]])).advantage.round(4).tolist()
    [0.85, -0.15, -0.15, -0.15, 0.1, 0.1, 0.0]
    """

    claims: ClassVar[frozenset[str]] = frozenset({"shift_invariant", "needs_group"})

    shift: float = -0.1
    """Added to the mean; δV of the paper."""

    def __call__(self, batch: AdvantageBatch) -> Credit:
        compared_A = batch.baseline_A & (groups.count(batch) > 1)
        return Credit(np.where(compared_A, groups.centered(batch) - self.shift, 0.0))
