"""REINFORCE++: returns whitened over the lease."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit, along, groups
from trinity_core.errors import ConfigError
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class ReinforcePlusPlus(Advantage):
    """``G_t = Σ_{k≥t} γ^{k−t} r_k``, then ``A_t = (G_t − mean) / (std + eps)`` over the own action tokens of the lease,
    population deviation (REINFORCE++, arXiv:2501.03262, its advantage and global normalisation).

    ``r`` is the reward on the last action token plus per-token rewards; the paper's own form adds k1 to them
    (``algorithm.kl={estimator: k1, where: reward}``) and plays one attempt per task. ``baseline: group`` is the paper's
    variant for groups: the group's mean leaves the attempt's reward first. A constant group is then not 0: whitening moves
    it by the mean over the lease.

    Shifting every reward changes nothing while γ is 1, or with the group's mean as baseline.

    >>> ReinforcePlusPlus()(AdvantageBatch.of([1, 0], num_actions_A=[1, 3])).advantage.round(4).tolist()
    [1.7321, -0.5774, -0.5774, -0.5774]
    """

    claims: ClassVar[frozenset[str]] = frozenset({"shift_invariant", "scale_invariant"})

    gamma: float = 1.0
    """Discount per action token."""
    baseline: Literal["group"] | None = None
    """``group``: the attempt's reward minus the mean of its group; ``None``: the reward itself."""
    eps: float = 1e-8
    """Added to the standard deviation."""

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"advantage.gamma: {self.gamma} is no discount. Write a number from 0 to 1")
        if self.eps < 0:
            raise ConfigError(f"advantage.eps: {self.eps} must be 0 or more")
        claims = self.claims
        if self.baseline == "group":  # an attempt alone in its group has no reward left: refused at check
            claims = claims | {"needs_group"}
        elif self.gamma < 1:
            claims = claims - {"shift_invariant"}
        object.__setattr__(self, "claims", claims)

    def needs(self) -> frozenset[str]:
        return frozenset({"token_reward"})

    def __call__(self, batch: AdvantageBatch) -> Credit:
        if self.baseline == "group":
            penalty_A = np.zeros(len(batch.reward_A))
            np.add.at(penalty_A, batch.attempt_N, batch.tokens.get("penalty", 0.0))
            terminal = dataclasses.replace(batch, reward_A=batch.reward_A - penalty_A)
            compared_A = np.where(batch.baseline_A, groups.centered(terminal) + penalty_A, np.nan)
            batch = dataclasses.replace(batch, reward_A=compared_A)
        return_N = along.backward(batch, batch.reward_N(), self.gamma)
        metrics = {"return_std": along.std(batch, return_N)}
        return Credit(along.whiten(batch, return_N, self.eps), per="token", metrics=metrics)
