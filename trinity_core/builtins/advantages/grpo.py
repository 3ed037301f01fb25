"""Group-relative advantage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit, groups
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class GroupRelative(Advantage):
    """``A = (R − mean_G) / (std + eps)``, per attempt (GRPO, arXiv:2402.03300, eq. 3 ff.).

    ``normalize=False`` is Dr. GRPO (arXiv:2503.20783): no division. A group of one, or of equal rewards, gets exactly 0.

    >>> GroupRelative(normalize=False)(AdvantageBatch.of([1, 0, 0, 0])).advantage.tolist()
    [0.75, -0.25, -0.25, -0.25]
    >>> GroupRelative()(AdvantageBatch.of([1, 0, 0, 0])).advantage.round(4).tolist()
    [1.5, -0.5, -0.5, -0.5]
    """

    claims: ClassVar[frozenset[str]] = frozenset({"zero_on_constant_group", "shift_invariant", "needs_group"})

    normalize: bool = True
    """Divide by the standard deviation."""
    eps: float = 1e-6
    """Added to the standard deviation."""
    std_level: Literal["group", "batch"] = "group"
    """Sample standard deviation of the group, or of all scored attempts of the lease."""

    def __call__(self, batch: AdvantageBatch) -> Credit:
        if self.normalize:
            advantage_A = groups.normalized(batch, self.eps, self.std_level)
        else:
            advantage_A = groups.centered(batch)
        base_A = batch.baseline_A
        constant = float(groups.constant(batch)[base_A].mean()) if base_A.any() else 0.0
        return Credit(
            advantage_A,
            metrics={
                "constant_groups": constant,
                "reward_std": float(np.mean(groups.std(batch)[base_A])) if base_A.any() else 0.0,
            },
        )
