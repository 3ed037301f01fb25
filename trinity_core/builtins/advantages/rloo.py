"""Leave-one-out advantage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit, groups
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class LeaveOneOut(Advantage):
    """``A_i = R_i − mean_{j≠i} R_j``, per attempt (RLOO, arXiv:2402.14740). A group of one gets exactly 0.

    >>> LeaveOneOut()(AdvantageBatch.of([1, 0, 0, 0])).advantage.round(4).tolist()
    [1.0, -0.3333, -0.3333, -0.3333]
    """

    claims: ClassVar[frozenset[str]] = frozenset({"zero_on_constant_group", "shift_invariant", "needs_group"})

    def __call__(self, batch: AdvantageBatch) -> Credit:
        # R_i − (n·mean − R_i) / (n − 1) = (R_i − mean) · n / (n − 1)
        num_A = groups.count(batch)
        return Credit(groups.centered(batch) * num_A / np.maximum(num_A - 1, 1))
