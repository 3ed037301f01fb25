"""Arithmetic along the action tokens of each attempt: recursions from its end, whitening over the lease. Shapes end in N.

Tool output and prompts are not action tokens: they are not in these arrays, so nothing here can count them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo.batch import AdvantageBatch
from trinity_core.algo.groups import TOLERANCE


def own(batch: AdvantageBatch) -> NDArray[np.bool_]:
    """Tokens of attempts that enter baselines (``batch.baseline_A``)."""
    own_N: NDArray[np.bool_] = batch.baseline_A[batch.attempt_N]
    return own_N


def backward(batch: AdvantageBatch, value_N: NDArray[np.float64], decay: float) -> NDArray[np.float64]:
    """``y_t = x_t + decay · y_{t+1}`` along each attempt; past its last action token 0.

    >>> batch = AdvantageBatch.of([0, 0], num_actions_A=[3, 1])
    >>> backward(batch, np.array([0.0, 0.0, 8.0, 1.0]), 0.5).tolist()
    [2.0, 4.0, 8.0, 1.0]
    """
    order, last_A, num_A = _ends(batch)
    result = np.array(value_N, dtype=np.float64)[order]
    for back in range(1, int(num_A.max(initial=0))):  # all attempts at once, that many tokens before their last
        here = last_A[num_A > back] - back
        result[here] += decay * result[here + 1]
    return _back(result, order)


def following(batch: AdvantageBatch, value_N: NDArray[np.float64], end_A: NDArray[np.float64]) -> NDArray[np.float64]:
    """``x_{t+1}`` along each attempt; ``end_A`` of the attempt (numbered as in ``reward_A``) after its last action token.

    >>> following(AdvantageBatch.of([0, 0], num_actions_A=[3, 1]), np.array([1.0, 2.0, 3.0, 4.0]), np.zeros(2)).tolist()
    [2.0, 3.0, 0.0, 0.0]
    """
    order, last_A, _ = _ends(batch)
    result = np.append(np.asarray(value_N, dtype=np.float64)[order][1:], 0.0)[: len(order)]
    result[last_A] = end_A[batch.attempt_N[order][last_A]]
    return _back(result, order)


def last(batch: AdvantageBatch, value_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """The value at the last action token of each attempt, numbered as in ``reward_A``; 0 where it has none.

    >>> last(AdvantageBatch.of([0, 0, 0], num_actions_A=[2, 0, 1]), np.array([1.0, 2.0, 3.0])).tolist()
    [2.0, 0.0, 3.0]
    """
    order, last_A, _ = _ends(batch)
    result = np.zeros(len(batch.reward_A))
    result[batch.attempt_N[order][last_A]] = np.asarray(value_N, dtype=np.float64)[order][last_A]
    return result


def std(batch: AdvantageBatch, value_N: NDArray[np.float64]) -> float:
    """Population deviation over the own action tokens of the lease; exactly 0 where all are the same up to rounding.

    >>> std(AdvantageBatch.of([1, 0]), np.array([0.1 + 0.2, 0.3]))
    0.0
    """
    own_values = np.asarray(value_N, dtype=np.float64)[own(batch)]
    differ = len(own_values) and np.ptp(own_values) > TOLERANCE * np.abs(own_values).max()
    return float(own_values.std()) if differ else 0.0


def whiten(batch: AdvantageBatch, value_N: NDArray[np.float64], eps: float) -> NDArray[np.float64]:
    """``(x − mean) / (std + eps)`` over the own action tokens of the lease, population deviation; other tokens get 0.

    Values that are all the same, up to rounding, get exactly 0.

    >>> whiten(AdvantageBatch.of([1, 0]), np.array([3.0, 1.0]), 0.0).tolist()
    [1.0, -1.0]
    """
    own_N, deviation = own(batch), std(batch, value_N)
    result = np.zeros(len(own_N))
    if deviation > 0:
        own_values = np.asarray(value_N, dtype=np.float64)[own_N]
        centered = own_values - own_values.mean()
        result[own_N] = (centered - centered.mean()) / (deviation + eps)  # the second mean: what rounding left
    return result


def _ends(batch: AdvantageBatch) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Tokens attempt by attempt, each in its own order; the place of each attempt's last one; how many it has."""
    order = np.argsort(batch.attempt_N, kind="stable")
    num_A = np.unique(batch.attempt_N, return_counts=True)[1].astype(np.int64)
    return order, np.cumsum(num_A) - 1, num_A


def _back(value: NDArray[np.float64], order: NDArray[np.int64]) -> NDArray[np.float64]:
    result = np.empty_like(value)
    result[order] = value
    return result
