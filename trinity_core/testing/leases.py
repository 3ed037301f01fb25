"""Small leases for the contract of advantages: made by number, put in another order, and laid out three ways."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from trinity_core.algo.batch import AdvantageBatch
from trinity_core.protocols import Advantage
from trinity_core.types import Attempt, Call, Experience, Group, Ok, Origin, Sampling, Task

ARRAYS = ("old_logp", "ref_logp", "sampler_logp", "teacher_logp", "value", "entropy")
NO_ARRAYS = {"greedy", "expert", "pairs", "state", "step_reward", "token_reward", "entropy_grad"}


def lease(
    advantage: Advantage | None = None,
    seed: int = 0,
    *,
    sizes: tuple[int, ...] = (4, 2, 3),
    extra: bool = True,
    greedy: bool = True,
    lengths: int = 0,
) -> AdvantageBatch:
    """A lease of uneven groups: calls with states and step rewards, and (``extra``) a fault, an expert's attempt and one
    without action tokens; a greedy attempt per group, as for baselines that ask for one. Rewards follow from ``seed``, numbers
    of calls and tokens from ``lengths`` too; arrays are those that ``advantage`` needs, and some more."""
    rng, shape = np.random.default_rng(seed), np.random.default_rng((seed, lengths))
    reward_A, group_A, role_A = [], [], []
    for group, size in enumerate(sizes):
        rows = [("sample", float(rng.normal())) for _ in range(size)]
        if greedy:
            rows.append(("greedy", float(rng.normal())))
        if extra and group == 0:
            rows += [("sample", math.nan), ("expert", math.nan)]
        for role, reward in rows:
            reward_A.append(reward)
            group_A.append(group)
            role_A.append(role)
    calls_A = shape.integers(1, 4, len(reward_A))
    attempt_K = np.repeat(np.arange(len(reward_A)), calls_A)
    step_K = np.concatenate([np.arange(calls) for calls in calls_A])
    trained_K = np.array([role_A[attempt] != "greedy" for attempt in attempt_K])
    tokens_K = np.where(trained_K, shape.integers(1, 4, len(attempt_K)), 0)
    attempt_N = np.repeat(attempt_K, tokens_K)
    num_A = np.bincount(attempt_N, minlength=len(reward_A))
    num_A[np.array(role_A) == "greedy"] = 3
    return AdvantageBatch(
        reward_A=np.array(reward_A),
        group_A=np.array(group_A),
        role_A=np.array(role_A),
        num_actions_A=num_A,
        reward_K=rng.normal(size=len(attempt_K)),
        state_K=np.array([f"s{step}" for step in step_K]),
        step_K=step_K,
        attempt_K=attempt_K,
        attempt_N=attempt_N,
        call_N=np.repeat(np.arange(len(attempt_K)), tokens_K),
        tokens=arrays(advantage, len(attempt_N), rng),
        truncated_A=rng.uniform(size=len(reward_A)) < 0.3,
    )


def arrays(advantage: Advantage | None, size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Something for each array per token that ``advantage`` may read."""
    needs = set() if advantage is None else {need.removeprefix("vocab:") for need in advantage.needs()}
    names = [*ARRAYS, *sorted(needs - NO_ARRAYS - set(ARRAYS))]
    return {name: -rng.uniform(0.1, 2.0, size) for name in names}


def permuted(batch: AdvantageBatch, order_A: np.ndarray) -> tuple[AdvantageBatch, dict[str, np.ndarray]]:
    """The same lease with its attempts in another order (calls and tokens follow), and the order of each."""
    order_K = np.concatenate([np.flatnonzero(batch.attempt_K == attempt) for attempt in order_A])
    order_N = np.concatenate([np.flatnonzero(batch.attempt_N == attempt) for attempt in order_A])
    place_A, place_K = np.argsort(order_A), np.argsort(order_K)
    of_A = ("reward_A", "group_A", "role_A", "num_actions_A", "truncated_A")
    moved = dataclasses.replace(
        batch,
        **{name: getattr(batch, name)[order_A] for name in of_A},
        **{name: getattr(batch, name)[order_K] for name in ("reward_K", "state_K", "step_K")},
        attempt_K=place_A[batch.attempt_K[order_K]],
        attempt_N=place_A[batch.attempt_N[order_N]],
        call_N=place_K[batch.call_N[order_N]],
        tokens={name: array[order_N] for name, array in batch.tokens.items()},
    )
    return moved, {"attempt": order_A, "call": order_K, "token": order_N}


def played(layout: str) -> list[Group]:
    """Two groups of several calls per attempt, each with a greedy attempt, in a layout of :func:`attempt`."""
    groups = []
    for number, attempts in enumerate(([[1, 2], [3], [2, 1, 1]], [[2], [1, 1, 1, 1, 1, 1, 1, 2]])):
        samples = [attempt(number, index, lengths, layout) for index, lengths in enumerate(attempts)]
        greedy = dataclasses.replace(attempt(number, 9, [2], layout), role="greedy")
        groups.append(Group(f"kit/{number}", Task(str(number), ()), [*samples, greedy]))
    return groups


def attempt(group: int, index: int, lengths: list[int], layout: str) -> Attempt:
    """Replies of these lengths. ``tools``: context between them. ``cut``: each in a sequence of its own, earlier ones
    rendered again as its history, the last one first."""
    tokens, origins, calls = [1, 2], [int(Origin.CONTEXT)] * 2, list[Call]()
    experiences: list[Experience] = []
    for step, length in enumerate(lengths):
        if step and layout == "tools":
            tokens, origins = tokens + [3] * step, origins + [int(Origin.CONTEXT)] * step
        start = len(tokens)
        tokens, origins = tokens + [4 + step] * length, origins + [int(Origin.SAMPLED)] * length
        reward = float(np.sin(3 * group + 2 * index + step))
        call = Call(start, len(tokens), step, [(0, start)], Sampling(), reward=reward, state=f"s{step}")
        calls.append(call)
        if layout == "cut":
            experiences.append(_experience(tokens, origins, [call], len(experiences)))
            origins[start:] = [int(Origin.HISTORY)] * length
    if layout != "cut":
        experiences.append(_experience(tokens, origins, calls, 0))
    return Attempt(experiences[::-1], score=Ok(float(np.cos(group + 2 * index))), index=index)


def _experience(tokens: list[int], origins: list[int], calls: list[Call], index: int) -> Experience:
    origin_T = np.array(origins, dtype=np.uint8)
    logp_T = np.where(origin_T == Origin.SAMPLED, -1.0, np.nan).astype(np.float32)
    parent: Any = index - 1 if index else None
    return Experience(np.array(tokens, dtype=np.int32), origin_T, logp_T, calls, index=index, parent=parent)
