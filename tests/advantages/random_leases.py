"""Random leases with everything that makes an advantage wrong: made for the references alone."""

from __future__ import annotations

import math

import numpy as np

from trinity_core.algo.batch import AdvantageBatch

NAMES = ("old_logp", "teacher_logp", "entropy", "value", "entropy_deviation")


def random_lease(seed: int, *, extras: bool = True) -> AdvantageBatch:
    """Uneven groups under numbers with gaps, attempts of several groups in turn. In each: samples with many or few reward
    levels, faults, an expert, a greedy attempt (or none, or one that failed), attempts without action tokens. Calls have
    states that come again, and stand in another order than their steps. ``extras``: rewards and penalties per token."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, str, float]] = []
    for group in rng.permutation(np.arange(11, 80, 7))[: rng.integers(1, 6)].tolist():
        levels = [lambda: float(rng.integers(0, 2)), lambda: float(rng.normal()), lambda: 0.3, lambda: 5.0]
        draw = levels[int(rng.integers(len(levels)))]
        rows += [(group, "sample", draw()) for _ in range(int(rng.integers(1, 7)))]
        rows += [(group, "sample", math.nan)] * int(rng.integers(0, 3))
        rows += [(group, "expert", [math.nan, 50.0][int(rng.integers(2))])] * int(rng.integers(0, 2))
        rows += [(group, "greedy", [math.nan, 0.5][int(rng.integers(2))])] * int(rng.integers(0, 2))
    rows = [rows[place] for place in rng.permutation(len(rows))]
    group_A, role_A, reward_A = (np.array(column) for column in zip(*rows))
    near_A = (reward_A == 0.3) & (rng.uniform(size=len(rows)) < 0.5)
    reward_A[near_A] = 0.1 + 0.2  # the same as 0.3, up to rounding
    calls_A = rng.integers(1, 5, len(rows))
    attempt_K = np.repeat(np.arange(len(rows)), calls_A)
    step_K = np.concatenate([rng.permutation(calls) for calls in calls_A])
    dense_A = rng.uniform(size=len(rows)) < 0.5
    given_K = dense_A[attempt_K] & (rng.uniform(size=len(attempt_K)) < 0.8)
    tokens_K = rng.integers(0, 4, len(attempt_K)) * (role_A[attempt_K] != "greedy")
    tokens_K[attempt_K == int(rng.integers(len(rows)))] = 0  # one without action tokens
    # tokens stand attempt by attempt, in order of steps
    order_K = np.lexsort((step_K, attempt_K))
    call_N = np.repeat(order_K, tokens_K[order_K])
    attempt_N = attempt_K[call_N]
    num_A = np.bincount(attempt_N, minlength=len(rows))
    num_A[role_A == "greedy"] = 2
    tokens = {name: -rng.uniform(0.05, 3.0, len(call_N)) for name in NAMES}
    tokens["entropy_deviation"] = np.round(rng.normal(size=len(call_N)), 1)  # with ties
    if extras:
        own_N = ((role_A == "sample") & np.isfinite(reward_A))[attempt_N]
        tokens["token_reward"] = np.where(rng.uniform(size=len(call_N)) < 0.3, rng.normal(size=len(call_N)), 0.0)
        tokens["penalty"] = np.where(own_N, -rng.uniform(0.0, 0.2, len(call_N)), 0.0)
        reward_A = reward_A + np.bincount(attempt_N, tokens["penalty"], len(rows))
    return AdvantageBatch(
        reward_A=reward_A,
        group_A=group_A.astype(np.int64),
        role_A=role_A,
        num_actions_A=num_A,
        reward_K=np.where(given_K, rng.normal(size=len(attempt_K)), np.nan),
        state_K=np.array([["", "a", "b"][int(rng.integers(3))] for _ in attempt_K]),
        step_K=step_K,
        attempt_K=attempt_K,
        attempt_N=attempt_N,
        call_N=call_N,
        tokens=tokens,
        truncated_A=rng.uniform(size=len(rows)) < 0.4,
    )
