"""Baselines over the attempts of each group. Groups are formed by number, never by position; shapes end in A."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo.batch import AdvantageBatch

TOLERANCE = 1e-9
"""Rewards of a group that differ by less than this share of the largest are the same: 0.1 + 0.2 is 0.3."""


def count(batch: AdvantageBatch) -> NDArray[np.int64]:
    """Attempts in the baseline of each attempt's group."""
    group_A = _numbers(batch)
    return np.bincount(group_A, batch.baseline_A, minlength=len(group_A)).astype(np.int64)[group_A]


def centered(batch: AdvantageBatch) -> NDArray[np.float64]:
    """``R − mean of the group``; exactly 0 in a group of one or of equal rewards, and outside baselines.

    >>> centered(AdvantageBatch.of([[1, 0, 0, 0], [0.1 + 0.2, 0.3]])).tolist()
    [0.75, -0.25, -0.25, -0.25, 0.0, 0.0]
    """
    group_A, base_A = _numbers(batch), batch.baseline_A
    reward_A = np.where(base_A, batch.reward_A, 0.0)
    num_A = np.maximum(count(batch), 1)
    mean_A = np.bincount(group_A, reward_A, minlength=len(group_A))[group_A] / num_A
    residual_A = np.where(base_A, reward_A - mean_A, 0.0)
    # second pass: what rounding left in the mean
    mean_A = mean_A + np.bincount(group_A, residual_A, minlength=len(group_A))[group_A] / num_A
    return np.where(base_A & ~constant(batch), reward_A - mean_A, 0.0)


def constant(batch: AdvantageBatch) -> NDArray[np.bool_]:
    """Whether all rewards of each attempt's group are the same, up to :data:`TOLERANCE`."""
    group_A, base_A = _numbers(batch), batch.baseline_A
    high, low, size = (np.full(len(group_A), value) for value in (-np.inf, np.inf, 0.0))
    np.maximum.at(high, group_A[base_A], batch.reward_A[base_A])
    np.minimum.at(low, group_A[base_A], batch.reward_A[base_A])
    np.maximum.at(size, group_A[base_A], np.abs(batch.reward_A[base_A]))
    with np.errstate(invalid="ignore"):
        differ: NDArray[np.bool_] = high - low > TOLERANCE * size
    return ~differ[group_A]


def std(batch: AdvantageBatch, level: str = "group", *, ddof: int = 1) -> NDArray[np.float64]:
    """Standard deviation of the rewards of each attempt's group, or of all attempts (``level="batch"``): of a sample
    (``n − 1``), or with ``ddof=0`` of a population; 0 where there are fewer than two."""
    base_A = batch.baseline_A
    if level == "batch":
        rewards = batch.reward_A[base_A]
        return np.full(len(base_A), rewards.std(ddof=ddof) if len(rewards) > 1 else 0.0)
    group_A, num_A = _numbers(batch), count(batch)
    square_A = np.bincount(group_A, centered(batch) ** 2, minlength=len(group_A))[group_A]
    return np.sqrt(square_A / np.maximum(num_A - ddof, 1))


def normalized(batch: AdvantageBatch, eps: float, level: str = "group", *, ddof: int = 1) -> NDArray[np.float64]:
    """``(R − mean of the group) / (std + eps)``; exactly 0 wherever :func:`centered` is, also for ``eps`` 0.

    >>> normalized(AdvantageBatch.of([[1, 0, 0, 0], [3, 3]]), 0.0).tolist()
    [1.5, -0.5, -0.5, -0.5, 0.0, 0.0]
    """
    centered_A = centered(batch)
    return np.divide(
        centered_A, std(batch, level, ddof=ddof) + eps, out=np.zeros_like(centered_A), where=centered_A != 0
    )


def total(
    batch: AdvantageBatch, value_A: NDArray[Any], inside_A: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """Sum of ``value_A`` over the attempts in the baseline of each attempt's group, or over those of ``inside_A``."""
    group_A, inside_A = _numbers(batch), batch.baseline_A if inside_A is None else inside_A
    sum_A = np.bincount(group_A, np.where(inside_A, value_A, 0.0), minlength=len(group_A))
    return sum_A[group_A].astype(np.float64)


def largest(batch: AdvantageBatch, value_A: NDArray[np.float64]) -> NDArray[np.float64]:
    """Largest of ``value_A`` over the attempts in the baseline of each attempt's group; 0 where there is none."""
    group_A, base_A = _numbers(batch), batch.baseline_A
    high = np.full(len(group_A), -np.inf)
    np.maximum.at(high, group_A[base_A], value_A[base_A])
    return np.where(np.isfinite(high), high, 0.0)[group_A]


def _numbers(batch: AdvantageBatch) -> NDArray[np.int64]:
    return np.unique(batch.group_A, return_inverse=True)[1].astype(np.int64).reshape(-1)
