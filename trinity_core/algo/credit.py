"""Credit of attempts, calls or tokens goes to action tokens; KL to the reference as part of the reward."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo import kl
from trinity_core.algo.batch import AdvantageBatch, Credit, TrainBatch
from trinity_core.errors import DataError


def apply_credit(batch: TrainBatch, advantages: AdvantageBatch, credit: Credit) -> None:
    """Fill ``advantage_N``, ``returns_N`` and ``keep_N`` of ``batch``: once per lease.

    Credit per attempt or call is that of each of its tokens (a token without a call gets 0). Raises :class:`DataError` when
    credit was applied before (an advantage normalised twice is another algorithm), on wrong lengths and on values that are
    not finite.
    """
    if batch.advantage_N is not None:
        raise DataError("credit was already applied to this batch. Assemble it again to apply another advantage")
    order_N = advantages.order_N if advantages.order_N is not None else np.arange(batch.num_actions)
    sizes = {"attempt": len(advantages.reward_A), "call": len(advantages.reward_K), "token": batch.num_actions}
    if credit.per not in sizes:
        raise DataError(f"Credit.per: {credit.per!r} is unknown. Choose one of {', '.join(sizes)}")
    value = np.asarray(credit.advantage, dtype=np.float64)
    if value.shape != (sizes[credit.per],):
        raise DataError(f"Credit.advantage: shape {value.shape} for {sizes[credit.per]} {credit.per}s")
    if credit.per == "token":
        advantage_N = _scatter(value, order_N)
    elif credit.per == "call":
        advantage_N = np.where(batch.call_N >= 0, np.append(value, 0.0)[batch.call_N], 0.0)
    else:
        advantage_N = value[batch.attempt_B[batch.row_N]]
    keep_N = (
        np.ones(batch.num_actions, np.bool_) if credit.keep_N is None else _scatter(credit.keep_N, order_N, "keep_N")
    )
    if not np.isfinite(advantage_N[keep_N]).all():
        bad = int((~np.isfinite(advantage_N[keep_N])).sum())
        raise DataError(
            f"Credit.advantage: {bad} action tokens have an advantage that is not finite. Give attempts without a score 0"
        )
    batch.advantage_N = advantage_N
    batch.keep_N = batch.keep_N & keep_N
    if credit.returns_N is not None:
        batch.returns_N = _scatter(credit.returns_N, order_N, "returns_N")


def _scatter(array: NDArray[Any], order_N: NDArray[np.int64], name: str = "advantage") -> NDArray[Any]:
    """From the attempts' own order of calls to the order of the batch."""
    array = np.asarray(array)
    if array.shape != order_N.shape:
        raise DataError(f"Credit.{name}: shape {array.shape} for {len(order_N)} action tokens")
    result = np.empty_like(array)
    result[order_N] = array
    return result


def penalise(advantages: AdvantageBatch, coef: float, estimator: str = "k1") -> AdvantageBatch:
    """KL in the reward: ``r_t -= coef * k(ref_t - old_t)`` from frozen log-probabilities, before the estimator.

    ``tokens["penalty"]`` holds ``-coef * k`` (0 for attempts outside baselines); ``reward_A`` loses the attempt's sum.
    """
    missing = {"old_logp", "ref_logp"} - set(advantages.tokens)
    if missing:
        raise DataError(f"KL in the reward needs {', '.join(sorted(missing))} of every action token")
    own_N = advantages.baseline_A[advantages.attempt_N]
    penalty_N = -coef * kl.estimate(estimator, advantages.tokens["old_logp"], advantages.tokens["ref_logp"])
    penalty_N = np.where(own_N, penalty_N, 0.0)
    total_A = np.bincount(advantages.attempt_N, penalty_N, len(advantages.reward_A))
    return dataclasses.replace(
        advantages, reward_A=advantages.reward_A + total_A, tokens={**advantages.tokens, "penalty": penalty_N}
    )
