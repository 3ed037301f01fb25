"""Group-relative credit of the whole attempt for each of its calls."""

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
class StepWiseGRPO(Advantage):
    """``A_k = (R − mean_G) / (std_G + eps)`` for every call ``k`` of the attempt: GRPO (arXiv:2402.03300) with the final
    reward broadcast to all steps. ``step_norm`` divides by the attempt's number of calls.

    Means and deviations are over attempts, however many calls, sequences or tokens each has.

    >>> batch = AdvantageBatch.of([1, 0, 0, 0], attempt_K=[0, 0, 1, 2, 3], step_K=[0, 1, 0, 0, 0], reward_K=[np.nan] * 5)
    >>> StepWiseGRPO(step_norm=True)(batch).advantage.round(4).tolist()
    [0.75, 0.75, -0.5, -0.5, -0.5]
    """

    claims: ClassVar[frozenset[str]] = frozenset({"zero_on_constant_group", "shift_invariant", "needs_group"})

    final: Literal["attempt", "last_step"] = "attempt"
    """``attempt``: the attempt's reward, which for a world is the sum over its steps; ``last_step``: the step reward of the
    call with the highest step number, where it has one."""
    step_norm: bool = False
    """Divide by the attempt's number of calls."""
    normalize: bool = True
    """Divide by the standard deviation."""
    eps: float = 1e-6
    """Added to the standard deviation."""
    std_level: Literal["group", "batch"] = "group"
    """Sample standard deviation of the group, or of all scored attempts of the lease."""

    def __post_init__(self) -> None:
        if self.eps < 0:
            raise ConfigError(f"advantage.eps: {self.eps} must be 0 or more")

    def needs(self) -> frozenset[str]:
        return frozenset({"step_reward"}) if self.final == "last_step" else frozenset()

    def __call__(self, batch: AdvantageBatch) -> Credit:
        if self.final == "last_step":
            batch = dataclasses.replace(batch, reward_A=_last_step(batch))
        if self.normalize:
            advantage_A = groups.normalized(batch, self.eps, self.std_level)
        else:
            advantage_A = groups.centered(batch)
        num_A = np.bincount(batch.attempt_K, minlength=len(advantage_A))
        if self.step_norm:
            advantage_A = advantage_A / np.maximum(num_A, 1)
        base_A = batch.baseline_A
        calls = float(num_A[base_A].mean()) if base_A.any() else 0.0
        return Credit(advantage_A[batch.attempt_K], per="call", metrics={"calls": calls})


def _last_step(batch: AdvantageBatch) -> NDArray[np.float64]:
    """The step reward of each attempt's call with the highest step number; the attempt's own reward without one."""
    reward_A = np.array(batch.reward_A)
    order_K = np.lexsort((batch.step_K, batch.attempt_K))
    last_K = order_K[np.diff(batch.attempt_K[order_K], append=-1) != 0]
    last_K = last_K[np.isfinite(batch.reward_K[last_K]) & np.isfinite(reward_A[batch.attempt_K[last_K]])]
    reward_A[batch.attempt_K[last_K]] = batch.reward_K[last_K]
    return reward_A
