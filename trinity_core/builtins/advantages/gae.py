"""Generalised advantage estimation, with a critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo import AdvantageBatch, Credit, along
from trinity_core.errors import ConfigError, DataError
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class GeneralizedAdvantage(Advantage):
    """``δ_t = r_t + γ V_{t+1} − V_t``, ``A_t = δ_t + γ λ A_{t+1}`` along each attempt's action tokens (GAE,
    arXiv:1506.02438, eq. 16).

    ``V_t`` is the critic's value before action token ``t``; after the last one it is 0. Returns, which the critic learns, are
    ``A_t + V_t`` before whitening. Then ``A ← (A − mean) / (std + eps)`` over the own action tokens of the lease,
    population deviation. Tool output and prompts are no actions: from one call to the next is one step.

    Shifting every reward changes nothing while γ and λ are 1 and credit is whitened.

    >>> batch = AdvantageBatch.of([1], num_actions_A=[2], value=[0.5, 0.25])
    >>> credit = GeneralizedAdvantage(gamma=0.5, lam=0.5, whiten=False)(batch)
    >>> credit.advantage.tolist(), credit.returns_N.tolist()
    ([-0.1875, 0.75], [0.3125, 1.0])
    """

    claims: ClassVar[frozenset[str]] = frozenset({"shift_invariant"})
    beside: ClassVar[tuple[str, ...]] = ("critic=value_head",)

    gamma: float = 1.0
    """Discount per action token."""
    lam: float = 1.0
    """λ: 1 is return minus value, 0 trusts the critic's next value."""
    whiten: bool = True
    """Centre and scale over the lease."""
    eps: float = 1e-8
    """Added to the standard deviation."""
    bootstrap_truncated: bool = False
    """An attempt that was cut off did not end: after its last action the value is that before it, instead of 0."""

    def __post_init__(self) -> None:
        for name, value in (("gamma", self.gamma), ("lam", self.lam)):
            if not 0 <= value <= 1:
                raise ConfigError(f"advantage.{name}: {value} is no discount. Write a number from 0 to 1")
        if self.eps < 0:
            raise ConfigError(f"advantage.eps: {self.eps} must be 0 or more")
        if not (self.gamma == self.lam == 1 and self.whiten):
            object.__setattr__(self, "claims", self.claims - {"shift_invariant"})

    def needs(self) -> frozenset[str]:
        return frozenset({"value", "token_reward"})

    def __call__(self, batch: AdvantageBatch) -> Credit:
        value_N, own_N = batch.tokens["value"], along.own(batch)
        next_N = along.following(batch, value_N, self._end(batch))
        delta_N = batch.reward_N() + self.gamma * next_N - value_N
        advantage_N = np.where(own_N, along.backward(batch, delta_N, self.gamma * self.lam), 0.0)
        return_N = advantage_N + value_N
        metrics = {}
        if own_N.any():
            metrics = {"value_mean": float(value_N[own_N].mean()), "return_mean": float(return_N[own_N].mean())}
        if self.whiten:
            advantage_N = along.whiten(batch, advantage_N, self.eps)
        return Credit(advantage_N, per="token", returns_N=return_N, metrics=metrics)

    def _end(self, batch: AdvantageBatch) -> NDArray[np.float64]:
        """The value after each attempt's last action."""
        if not self.bootstrap_truncated:
            return np.zeros(len(batch.reward_A))
        if batch.truncated_A is None:
            raise DataError("advantage.bootstrap_truncated: the batch does not say which attempts were truncated")
        return np.where(batch.truncated_A, along.last(batch, batch.tokens["value"]), 0.0)
