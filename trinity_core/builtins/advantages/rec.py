"""Group-relative credit of the REC family, with balanced negatives."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo import AdvantageBatch, Credit, groups
from trinity_core.errors import ConfigError
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class REC(Advantage):
    """``A = R − mean_G``, per attempt; with ``normalize`` divided by ``std_G + eps``, population deviation (REC,
    arXiv:2509.24203, sec. 3 and 4).

    ``drop: balance`` (RED-Drop) keeps as many attempts below the group's mean as there are at or above it, where there are
    more; mean and deviation are then those of the attempts that are kept. Attempts of a group are exchangeable, so the first
    ones are as good as random ones, and a lease gives the same credit every time.

    >>> REC()(AdvantageBatch.of([1, 0, 0, 0])).advantage.tolist()
    [0.75, -0.25, -0.25, -0.25]
    >>> credit = REC(drop="balance")(AdvantageBatch.of([1, 0, 0, 0]))
    >>> credit.advantage.tolist(), credit.keep_N.tolist()
    ([0.5, -0.5, 0.0, 0.0], [True, True, False, False])
    """

    claims: ClassVar[frozenset[str]] = frozenset({"zero_on_constant_group", "shift_invariant", "needs_group"})

    normalize: bool = False
    """Divide by the standard deviation of the group."""
    eps: float = 1e-6
    """Added to the standard deviation."""
    drop: Literal["balance"] | None = None
    """``balance``: the surplus of attempts below the mean leaves the update; ``None``: all stay."""

    def __post_init__(self) -> None:
        if self.eps < 0:
            raise ConfigError(f"advantage.eps: {self.eps} must be 0 or more")

    def __call__(self, batch: AdvantageBatch) -> Credit:
        dropped_A = np.zeros(len(batch.reward_A), dtype=np.bool_)
        if self.drop == "balance":
            dropped_A = _surplus(batch)
        kept = dataclasses.replace(batch, reward_A=np.where(dropped_A, np.nan, batch.reward_A))
        advantage_A = groups.normalized(kept, self.eps, ddof=0) if self.normalize else groups.centered(kept)
        num = int(batch.baseline_A.sum())
        return Credit(
            advantage_A,
            keep_N=~dropped_A[batch.attempt_N] if self.drop else None,
            metrics={"dropped": float(dropped_A.sum()) / max(num, 1)} if self.drop else {},
        )


def _surplus(batch: AdvantageBatch) -> NDArray[np.bool_]:
    """Attempts below the mean of their group beyond the number of those that are not."""
    base_A, centered_A = batch.baseline_A, groups.centered(batch)
    surplus_A = np.zeros(len(base_A), dtype=np.bool_)
    for group in np.unique(batch.group_A[base_A]):
        inside_A = base_A & (batch.group_A == group)
        below = np.flatnonzero(inside_A & (centered_A < 0))
        surplus_A[below[int(inside_A.sum()) - len(below) :]] = True
    return surplus_A
