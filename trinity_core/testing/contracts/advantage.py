"""What every advantage keeps to: finite credit, groups by number and not by place, and claims that are true."""

from __future__ import annotations

import copy
import dataclasses
import math
import subprocess
import sys

import numpy as np

from trinity_core.algo.batch import AdvantageBatch, Credit
from trinity_core.protocols import Advantage
from trinity_core.testing.rules import NotApplicable, require

CLAIMS = ("zero_on_constant_group", "shift_invariant", "scale_invariant", "needs_group")
ARRAYS = ("old_logp", "ref_logp", "sampler_logp", "teacher_logp", "value", "entropy")


def lease(
    seed: int = 0, *, sizes: tuple[int, ...] = (4, 2, 3), extra: bool = True, greedy: bool = True
) -> AdvantageBatch:
    """A lease of uneven groups: calls with states and step rewards, and (``extra``) a fault, an expert's attempt and one
    without action tokens; a greedy attempt per group, as for baselines that ask for one."""
    rng = np.random.default_rng(seed)
    reward_A, group_A, role_A, calls_A = [], [], [], []
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
            calls_A.append(int(rng.integers(1, 4)))
    attempt_K = np.repeat(np.arange(len(reward_A)), calls_A)
    step_K = np.concatenate([np.arange(calls) for calls in calls_A])
    trained_K = np.array([role_A[attempt] != "greedy" for attempt in attempt_K])
    tokens_K = np.where(trained_K, rng.integers(1, 4, len(attempt_K)), 0)
    attempt_N = np.repeat(attempt_K, tokens_K)
    num_A = np.bincount(attempt_N, minlength=len(reward_A))
    num_A[np.array(role_A) == "greedy"] = 3
    size = len(attempt_N)
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
        tokens={name: -rng.uniform(0.1, 2.0, size) for name in ARRAYS},
    )


def permuted(batch: AdvantageBatch, order_A: np.ndarray) -> tuple[AdvantageBatch, dict[str, np.ndarray]]:
    """The same lease with its attempts in another order (calls and tokens follow), and the order of each."""
    order_K = np.concatenate([np.flatnonzero(batch.attempt_K == attempt) for attempt in order_A])
    order_N = np.concatenate([np.flatnonzero(batch.attempt_N == attempt) for attempt in order_A])
    place_A, place_K = np.argsort(order_A), np.argsort(order_K)
    moved = dataclasses.replace(
        batch,
        **{name: getattr(batch, name)[order_A] for name in ("reward_A", "group_A", "role_A", "num_actions_A")},
        **{name: getattr(batch, name)[order_K] for name in ("reward_K", "state_K", "step_K")},
        attempt_K=place_A[batch.attempt_K[order_K]],
        attempt_N=place_A[batch.attempt_N[order_N]],
        call_N=place_K[batch.call_N[order_N]],
        tokens={name: array[order_N] for name, array in batch.tokens.items()},
    )
    return moved, {"attempt": order_A, "call": order_K, "token": order_N}


def credit_of(advantage: Advantage, batch: AdvantageBatch) -> Credit:
    credit = advantage(batch)
    require(isinstance(credit, Credit), f"returned {type(credit).__name__}, not Credit")
    sizes = {"attempt": len(batch.reward_A), "call": len(batch.reward_K), "token": len(batch.attempt_N)}
    require(credit.per in sizes, f"Credit.per is {credit.per!r}. Choose one of {', '.join(sizes)}")
    shape = np.shape(credit.advantage)
    require(shape == (sizes[credit.per],), f"credit of shape {shape} for {sizes[credit.per]} {credit.per}s")
    return credit


def per_token(credit: Credit, batch: AdvantageBatch) -> np.ndarray:
    """The credit of each action token."""
    index = {"attempt": batch.attempt_N, "call": batch.call_N, "token": np.arange(len(batch.attempt_N))}[credit.per]
    return np.asarray(credit.advantage, dtype=np.float64)[index]


def gives_finite_credit(advantage: Advantage) -> None:
    """One finite number per attempt, call or token, also beside faults, experts and a group of one; metrics are numbers."""
    for sizes in ((4, 2, 3), (1, 3), (1,)):
        batch = lease(sizes=sizes)
        credit = credit_of(advantage, batch)
        kept = np.ones(len(batch.attempt_N), np.bool_) if credit.keep_N is None else credit.keep_N
        require(
            np.isfinite(per_token(credit, batch)[kept]).all(),
            f"credit is not finite for groups of {sizes}. Give attempts outside batch.baseline_A 0",
        )
        for name, value in credit.metrics.items():
            require(
                isinstance(value, (int, float)) and math.isfinite(value),
                f"metric {name!r} is {value!r}, not a finite number",
            )


def is_pure(advantage: Advantage) -> None:
    """The same lease gives the same credit, and is left as it was."""
    batch = lease()
    before = copy.deepcopy(batch)
    first, second = credit_of(advantage, batch), credit_of(advantage, batch)
    require(np.array_equal(first.advantage, second.advantage), "two calls on one lease differ")
    for name in ("reward_A", "group_A", "reward_K", "attempt_N"):
        require(
            np.array_equal(getattr(batch, name), getattr(before, name), equal_nan=True), f"{name} was changed in place"
        )


def order_changes_nothing(advantage: Advantage) -> None:
    """Attempts in any order, groups interleaved: each keeps its credit."""
    batch = lease()
    credit = credit_of(advantage, batch)
    for seed in range(3):
        moved, orders = permuted(batch, np.random.default_rng(seed).permutation(len(batch.reward_A)))
        found = credit_of(advantage, moved)
        require(found.per == credit.per, f"credit per {credit.per}, then per {found.per}")
        wanted = np.asarray(credit.advantage)[orders[credit.per]]
        _close(
            np.asarray(found.advantage),
            wanted,
            "attempts in another order get other credit. Group by batch.group_A, never by position",
        )


def group_numbers_mean_nothing(advantage: Advantage) -> None:
    """Groups may have any numbers, with gaps and in any order."""
    batch = lease()
    renamed = dataclasses.replace(batch, group_A=np.array([70, 3, 11])[batch.group_A])
    _close(
        per_token(credit_of(advantage, renamed), renamed),
        per_token(credit_of(advantage, batch), batch),
        "other group numbers give other credit",
    )


def faults_enter_no_baseline(advantage: Advantage) -> None:
    """An attempt without a score, an expert's, and one without action tokens change nobody's credit."""
    batch = lease(extra=False)
    alone = per_token(credit_of(advantage, batch), batch)
    group = np.append(batch.group_A, [0, 0, 1])
    more = dataclasses.replace(
        batch,
        reward_A=np.append(batch.reward_A, [math.nan, 100.0, 100.0]),
        group_A=group,
        role_A=np.append(batch.role_A, ["sample", "expert", "sample"]),
        num_actions_A=np.append(batch.num_actions_A, [3, 3, 0]),
    )
    _close(
        per_token(credit_of(advantage, more), more),
        alone,
        "an attempt outside batch.baseline_A changed the credit of others",
    )


def imports_no_torch(advantage: Advantage) -> None:
    """numpy only: its module loads without torch."""
    module = type(advantage).__module__
    if module == "__main__" or not getattr(sys.modules.get(module), "__spec__", None):
        raise NotApplicable(f"module {module} cannot be imported by name")
    code = f"import sys; sys.path[:] = {sys.path!r}; import {module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"importing {module} loads torch, or fails: {done.stderr.strip()[-300:]}")


def claim_zero_on_constant_group(advantage: Advantage) -> None:
    """``zero_on_constant_group``: equal rewards give exactly 0, also [0.1 + 0.2, 0.3], whether the lease has other groups
    of equal rewards or groups that differ; without the claim they do not."""
    most = 0.0
    for value in (1.0, 0.3, -2.0, 1e6 / 3):
        for others in ("equal", "differ"):
            batch = lease(extra=False, greedy=True)
            flat_A = (batch.group_A == 0) if others == "differ" else np.ones(len(batch.reward_A), np.bool_)
            batch.reward_A[flat_A] = value + batch.group_A[flat_A]  # each group its own constant
            near_A = flat_A & (batch.group_A == 0) & (np.arange(len(flat_A)) % 2 == 0)
            batch.reward_A[near_A] = (0.1 + 0.2) if value == 0.3 else value  # the same up to rounding
            batch.reward_A[batch.role_A == "greedy"] = 0.0
            batch.reward_K[flat_A[batch.attempt_K]] = value
            credit_N = per_token(credit_of(advantage, batch), batch)
            most = max(most, float(np.abs(credit_N[flat_A[batch.attempt_N]]).max()))
    _claim(advantage, "zero_on_constant_group", most == 0.0, f"equal rewards give credit up to {most:.3g}")


def claim_shift_invariant(advantage: Advantage) -> None:
    """``shift_invariant``: the same number added to every reward changes nothing; without the claim it does."""
    batch = lease()
    moved = dataclasses.replace(batch, reward_A=batch.reward_A + 5.0, reward_K=batch.reward_K + 5.0)
    away = _away(per_token(credit_of(advantage, moved), moved), per_token(credit_of(advantage, batch), batch))
    _claim(advantage, "shift_invariant", away < 1e-9, f"adding 5 to every reward moves credit by {away:.3g}")


def claim_scale_invariant(advantage: Advantage) -> None:
    """``scale_invariant``: three times the rewards is the same credit, to 1e-4. (An option may decide it, and an epsilon
    blur it: that a missing claim is false is not tested.)"""
    if "scale_invariant" not in advantage.claims:
        raise NotApplicable("it does not claim scale_invariant")
    batch = lease()
    scaled = dataclasses.replace(batch, reward_A=batch.reward_A * 3.0, reward_K=batch.reward_K * 3.0)
    away = _away(per_token(credit_of(advantage, scaled), scaled), per_token(credit_of(advantage, batch), batch))
    require(away < 1e-4, f"claims scale_invariant, but three times the rewards move credit by {away:.3g}")


def claim_needs_group(advantage: Advantage) -> None:
    """``needs_group``: an attempt alone in its group learns nothing, so a group size of 1 is refused; without the claim
    it learns something."""
    batch = lease(sizes=(1, 1), extra=False, greedy=True)
    most = float(np.abs(per_token(credit_of(advantage, batch), batch)).max())
    _claim(advantage, "needs_group", most == 0.0, f"attempts alone in their groups get credit up to {most:.3g}")


def claims_are_known(advantage: Advantage) -> None:
    """Claims are words the kernel knows."""
    unknown = sorted(set(advantage.claims) - set(CLAIMS))
    require(not unknown, f"claims {', '.join(unknown)} are unknown. Known: {', '.join(CLAIMS)}")


def _claim(advantage: Advantage, claim: str, holds: bool, evidence: str) -> None:
    if claim in advantage.claims:
        require(holds, f"claims {claim}, but {evidence}")
    else:
        require(not holds, f"does not claim {claim}, but it holds ({evidence}). Add it to claims")


def _away(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.max(np.abs(found - wanted), initial=0.0))


def _close(found: np.ndarray, wanted: np.ndarray, message: str) -> None:
    away = _away(found, wanted)
    require(away <= 1e-9 * max(1.0, float(np.max(np.abs(wanted), initial=0.0))), f"{message} (by {away:.3g})")


RULES = {
    "gives finite credit": gives_finite_credit,
    "is pure": is_pure,
    "order changes nothing": order_changes_nothing,
    "group numbers mean nothing": group_numbers_mean_nothing,
    "faults enter no baseline": faults_enter_no_baseline,
    "imports no torch": imports_no_torch,
    "claims are known": claims_are_known,
    "claim zero_on_constant_group, both ways": claim_zero_on_constant_group,
    "claim shift_invariant, both ways": claim_shift_invariant,
    "claim scale_invariant": claim_scale_invariant,
    "claim needs_group, both ways": claim_needs_group,
}
