"""Groups of attempts, and within them groups of calls taken in the same state."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo import AdvantageBatch, Credit, groups
from trinity_core.errors import ConfigError, DataError
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class GroupInGroup(Advantage):
    """``A = A_E + ω A_S``, per call (GiGPO, arXiv:2505.10978, sec. 4.1, and eq. 4 to 8 of sec. 4.2).

    ``A_E = (R − mean) / F`` over the attempts at the task, ``R`` the attempt's reward: the sum over its steps.
    ``A_S = (G_k − mean) / F`` over the calls, of the attempts at the same task, taken in the same state, with
    ``G_k = Σ_{j≥k} γ^{j−k} r_j`` discounted by steps, in order of step number; a call alone in its state gets 0. ``F`` is 1,
    or with ``normalize`` the sample deviation plus ``eps``. An attempt without step rewards has its own reward as that of
    its last step.

    Equal rewards are not 0 unless γ is 1: of two attempts in one state, the one nearer its reward is ahead.

    >>> batch = AdvantageBatch.of(
    ...     [1, 0], attempt_K=[0, 0, 1], step_K=[0, 1, 0], state_K=["a", "b", "a"], reward_K=[0, 1, 0], call_N=[0, 2]
    ... )
    >>> GroupInGroup()(batch).advantage.tolist()  # A_E ±.5; in state a: returns .95 and 0, so ±.475
    [0.975, 0.5, -0.975]
    """

    claims: ClassVar[frozenset[str]] = frozenset({"needs_group"})

    omega: float = 1.0
    """Weight of the part within states."""
    gamma: float = 0.95
    """Discount per step."""
    normalize: bool = False
    """Divide both parts by their standard deviation."""
    eps: float = 1e-6
    """Added to standard deviations."""

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"advantage.gamma: {self.gamma} is no discount. Write a number from 0 to 1")
        if self.omega < 0 or self.eps < 0:
            raise ConfigError(f"advantage.omega={self.omega}, advantage.eps={self.eps}: both are 0 or more")
        if self.omega == 0:  # episodes alone: group-relative credit
            object.__setattr__(self, "claims", self.claims | {"zero_on_constant_group", "shift_invariant"})

    def needs(self) -> frozenset[str]:
        return frozenset({"state", "step_reward"})

    def __call__(self, batch: AdvantageBatch) -> Credit:
        episode_A = groups.normalized(batch, self.eps) if self.normalize else groups.centered(batch)
        step_K, compared = self._within_states(batch)
        return Credit(
            episode_A[batch.attempt_K] + self.omega * step_K, per="call", metrics={"compared_calls": compared}
        )

    def _within_states(self, batch: AdvantageBatch) -> tuple[NDArray[np.float64], float]:
        """``A_S`` of each call, and the share of calls that were compared with another."""
        return_K = self._returns(batch)
        own_K = batch.baseline_A[batch.attempt_K]
        if own_K.any() and not (batch.state_K[own_K] != "").any():
            raise DataError(
                "advantage gigpo: compares calls taken in the same state, and no call of the lease has a state. Play an "
                "environment whose steps have one (Step.state), or write advantage=step_wise_grpo"
            )
        calls: dict[tuple[int, str], list[int]] = defaultdict(list)
        for call in np.flatnonzero(own_K & (batch.state_K != "")).tolist():
            calls[int(batch.group_A[batch.attempt_K[call]]), str(batch.state_K[call])].append(call)
        result_K, compared = np.zeros(len(return_K)), 0
        for members in calls.values():
            values = return_K[members]
            if len(members) < 2:
                continue
            compared += len(members)
            if np.ptp(values) > groups.TOLERANCE * np.abs(values).max():
                centered = values - values.mean()
                scale = values.std(ddof=1) + self.eps if self.normalize else 1.0
                result_K[members] = centered / scale
        return result_K, compared / max(int(own_K.sum()), 1)

    def _returns(self, batch: AdvantageBatch) -> NDArray[np.float64]:
        """``G_k``, in order of step number within each attempt."""
        reward_K = np.nan_to_num(batch.reward_K)
        given_A = np.bincount(batch.attempt_K, np.isfinite(batch.reward_K), len(batch.reward_A)) > 0
        order_K = np.lexsort((batch.step_K, batch.attempt_K))
        return_K = np.zeros(len(reward_K))
        attempt, later = -1, 0.0
        for call in order_K[::-1].tolist():
            last = batch.attempt_K[call] != attempt
            attempt = batch.attempt_K[call]
            reward = reward_K[call]
            if last and not given_A[attempt]:
                reward = np.nan_to_num(batch.reward_A[attempt])
            later = reward + (0.0 if last else self.gamma * later)
            return_K[call] = later
        return return_K
