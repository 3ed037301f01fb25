"""What every advantage keeps to: finite credit, groups by number and not by place, and claims that are true."""

from __future__ import annotations

import copy
import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np

from trinity_core.algo.assemble import advantage_batch, apply_credit, assemble
from trinity_core.algo.batch import AdvantageBatch, Credit
from trinity_core.protocols import Advantage
from trinity_core.testing.leases import NO_ARRAYS, arrays, lease, permuted, played
from trinity_core.testing.rules import NotApplicable, require

CLAIMS = ("zero_on_constant_group", "shift_invariant", "scale_invariant", "needs_group")


def credit_of(advantage: Advantage, batch: AdvantageBatch) -> Credit:
    credit = advantage(batch)
    require(isinstance(credit, Credit), f"returned {type(credit).__name__}, not Credit")
    sizes = {"attempt": len(batch.reward_A), "call": len(batch.reward_K), "token": len(batch.attempt_N)}
    require(credit.per in sizes, f"Credit.per is {credit.per!r}. Choose one of {', '.join(sizes)}")
    shape = np.shape(credit.advantage)
    require(shape == (sizes[credit.per],), f"credit of shape {shape} for {sizes[credit.per]} {credit.per}s")
    for name in ("keep_N", "returns_N"):
        array = getattr(credit, name)
        require(
            array is None or np.shape(array) == (sizes["token"],),
            f"{name} of shape {np.shape(array)} for {sizes['token']} action tokens",
        )
    return credit


def per_token(credit: Credit, batch: AdvantageBatch) -> np.ndarray:
    """What each action token gets: its credit (0 where it does not count), whether it counts, and its return: (3, N)."""
    index = {"attempt": batch.attempt_N, "call": batch.call_N, "token": np.arange(len(batch.attempt_N))}[credit.per]
    keep_N = np.ones(len(index)) if credit.keep_N is None else np.asarray(credit.keep_N, dtype=np.float64)
    returns_N = np.zeros(len(index)) if credit.returns_N is None else credit.returns_N
    advantage_N = np.where(keep_N > 0, np.asarray(credit.advantage, dtype=np.float64)[index], 0.0)
    return np.stack([advantage_N, keep_N, returns_N])


def size_of(advantage: Advantage, batch: AdvantageBatch, where_N: np.ndarray | None = None) -> float:
    """The largest credit of any token (that counts)."""
    credit_N = per_token(credit_of(advantage, batch), batch)[0]
    return float(np.abs(credit_N if where_N is None else credit_N[where_N]).max(initial=0.0))


def gives_finite_credit(advantage: Advantage) -> None:
    """One finite number per attempt, call or token, also beside faults, experts and a group of one; metrics are numbers."""
    for sizes in ((4, 2, 3), (1, 3), (1,)):
        batch = lease(advantage, sizes=sizes)
        credit = credit_of(advantage, batch)
        require(
            np.isfinite(per_token(credit, batch)).all(),
            f"credit is not finite for groups of {sizes}. Give attempts outside batch.baseline_A 0",
        )
        for name, value in credit.metrics.items():
            require(
                isinstance(value, (int, float)) and math.isfinite(value),
                f"metric {name!r} is {value!r}, not a finite number",
            )


def is_pure(advantage: Advantage) -> None:
    """The same lease gives the same credit, and is left as it was."""
    batch = lease(advantage)
    before = copy.deepcopy(batch)
    first, second = (per_token(credit_of(advantage, batch), batch) for _ in range(2))
    require(np.array_equal(first, second), "two calls on one lease differ")
    for name in ("reward_A", "group_A", "role_A", "reward_K", "attempt_N"):
        same = np.array_equal(getattr(batch, name), getattr(before, name), equal_nan=name.startswith("reward"))
        require(same, f"{name} was changed in place")
    for name, array in batch.tokens.items():
        require(np.array_equal(array, before.tokens[name]), f"tokens[{name!r}] was changed in place")


def order_changes_nothing(advantage: Advantage) -> None:
    """Attempts in any order, groups interleaved: each keeps its credit."""
    batch = lease(advantage)
    credit = credit_of(advantage, batch)
    for seed in range(3):
        moved, orders = permuted(batch, np.random.default_rng(seed).permutation(len(batch.reward_A)))
        found = credit_of(advantage, moved)
        require(found.per == credit.per, f"credit per {credit.per}, then per {found.per}")
        wrong = "attempts in another order get other credit. Group by batch.group_A, never by position"
        _close(np.asarray(found.advantage), np.asarray(credit.advantage)[orders[credit.per]], wrong)
        _close(per_token(found, moved), per_token(credit, batch)[:, orders["token"]], wrong)


def group_numbers_mean_nothing(advantage: Advantage) -> None:
    """Groups may have any numbers, with gaps and in any order."""
    batch = lease(advantage)
    renamed = dataclasses.replace(batch, group_A=np.array([70, 3, 11])[batch.group_A])
    _close(
        per_token(credit_of(advantage, renamed), renamed),
        per_token(credit_of(advantage, batch), batch),
        "other group numbers give other credit",
    )


def faults_enter_no_baseline(advantage: Advantage) -> None:
    """An attempt without a score, an expert's, and one without action tokens change nobody's credit."""
    batch = lease(advantage, extra=False)
    alone = per_token(credit_of(advantage, batch), batch)
    more = dataclasses.replace(
        batch,
        reward_A=np.append(batch.reward_A, [math.nan, 100.0, 100.0]),
        group_A=np.append(batch.group_A, [0, 0, 1]),
        role_A=np.append(batch.role_A, ["sample", "expert", "sample"]),
        num_actions_A=np.append(batch.num_actions_A, [3, 3, 0]),
        truncated_A=np.append(np.asarray(batch.truncated_A), [False] * 3),
    )
    _close(
        per_token(credit_of(advantage, more), more),
        alone,
        "an attempt outside batch.baseline_A changed the credit of others",
    )


def others_get_no_credit(advantage: Advantage) -> None:
    """Tokens of attempts outside baselines (a fault's, an expert's) get credit 0, whatever else is in the lease."""
    batch = lease(advantage)
    outside_N = ~batch.baseline_A[batch.attempt_N]
    most = size_of(advantage, batch, outside_N)
    require(most == 0.0, f"attempts outside batch.baseline_A get credit up to {most:.3g}. Give them 0")


def attempts_weigh_the_same_whatever_their_length(advantage: Advantage) -> None:
    """Credit per attempt depends on no number of calls or tokens: baselines are over attempts."""
    batch = lease(advantage)
    credit = credit_of(advantage, batch)
    if credit.per != "attempt":
        raise NotApplicable(f"its credit is per {credit.per}")
    for lengths in (1, 2):
        found = credit_of(advantage, lease(advantage, lengths=lengths))
        _close(
            np.asarray(found.advantage),
            np.asarray(credit.advantage),
            "attempts of other lengths get other credit. Baselines are over attempts, not over calls or tokens",
        )


def layout_changes_nothing(advantage: Advantage) -> None:
    """Tool output between calls is stepped over, and an attempt that a template cuts into an experience per call counts as
    one: the credit of each action token is the same."""
    found = {layout: _laid_out(advantage, layout) for layout in ("plain", "tools", "cut")}
    for layout, what in (("tools", "tool output between calls"), ("cut", "an experience for each call")):
        _close(
            found[layout],
            found["plain"],
            f"{what} gives action tokens other credit. Count action tokens along the attempt's calls",
        )


def _laid_out(advantage: Advantage, layout: str) -> np.ndarray:
    """What each action token gets, attempt by attempt in order of calls, by way of a :class:`TrainBatch`."""
    groups = played(layout)
    batch = assemble(groups, seed=0, step=0)
    scores = advantage_batch(groups, batch, advantage.needs() & NO_ARRAYS)
    tokens = arrays(advantage, batch.num_actions, np.random.default_rng(1))
    scores = dataclasses.replace(scores, tokens={**scores.tokens, **tokens})
    apply_credit(batch, scores, credit_of(advantage, scores))
    returns_N = np.zeros(batch.num_actions) if batch.returns_N is None else batch.returns_N
    found = np.stack([np.where(batch.keep_N, np.asarray(batch.advantage_N), 0.0), batch.keep_N, returns_N])
    return np.asarray(found[:, scores.order_N])


def imports_no_torch(advantage: Advantage) -> None:
    """numpy only: its module loads without torch."""
    module = type(advantage).__module__
    if module == "__main__" or not getattr(sys.modules.get(module), "__spec__", None):
        raise NotApplicable(f"module {module} cannot be imported by name")
    code = f"import sys; sys.path[:] = {sys.path!r}; import {module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"importing {module} loads torch, or fails: {done.stderr.strip()[-300:]}")


def vocabulary_functions_give_what_is_asked(advantage: Advantage) -> None:
    """``vocab:<name>`` has a function, which gives an array of that name: finite, one number per token, each token's from its own
    logits."""
    asked = {need.removeprefix("vocab:") for need in advantage.needs() if need.startswith("vocab:")}
    if not asked:
        raise NotApplicable("it asks for no vocabulary function")
    import torch

    generator = torch.Generator().manual_seed(0)
    logits_CV = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    token_C = torch.arange(5)
    functions = advantage.vocab()
    for name in sorted(asked):
        require(name in functions, f"needs vocab:{name}, and vocab() has only {', '.join(functions) or 'nothing'}")
        whole = functions[name](logits_CV, {"token_C": token_C})
        require(name in whole, f"vocab:{name} gives {', '.join(whole) or 'nothing'}, not {name!r}")
        require(tuple(whole[name].shape) == (5,), f"{name} has shape {tuple(whole[name].shape)} for 5 tokens")
        require(bool(torch.isfinite(whole[name]).all()), f"{name} is not finite")
        alone = functions[name](logits_CV[3:4], {"token_C": token_C[3:4]})[name]
        require(bool((alone - whole[name][3:4]).abs().max() < 1e-12), f"{name} of a token depends on its chunk")


def claim_zero_on_constant_group(advantage: Advantage) -> None:
    """``zero_on_constant_group``: equal rewards, and an attempt alone, give exactly 0, also [0.1 + 0.2, 0.3], whether the lease's
    other groups are equal too or differ; without the claim they do not."""
    most = 0.0
    for value in (1.0, 0.3, -2.0, 1e6 / 3):
        for others in ("equal", "differ"):
            batch = lease(advantage, sizes=(4, 1, 3), extra=False)
            flat_A = batch.group_A < (2 if others == "differ" else 3)
            batch.reward_A[flat_A] = value + batch.group_A[flat_A]  # each group its own constant
            near_A = (batch.group_A == 0) & (np.arange(len(flat_A)) % 2 == 0)
            batch.reward_A[near_A] = (0.1 + 0.2) if value == 0.3 else value  # the same up to rounding
            batch.reward_A[batch.role_A == "greedy"] = 0.0
            batch.reward_K[flat_A[batch.attempt_K]] = value
            most = max(most, size_of(advantage, batch, flat_A[batch.attempt_N]))
    _claim(advantage, "zero_on_constant_group", most == 0.0, f"equal rewards give credit up to {most:.3g}")


def claim_shift_invariant(advantage: Advantage) -> None:
    """``shift_invariant``: the same number added to every reward changes nothing; without the claim it does."""
    away = _moved_by(advantage, lambda reward: reward + 5.0)
    _claim(advantage, "shift_invariant", away < 1e-9, f"adding 5 to every reward moves credit by {away:.3g}")


def claim_scale_invariant(advantage: Advantage) -> None:
    """``scale_invariant``: three times the rewards is the same credit, to 1e-4. (An option may decide it, and an epsilon
    blur it: that a missing claim is false is not tested.)"""
    if "scale_invariant" not in advantage.claims:
        raise NotApplicable("it does not claim scale_invariant")
    away = _moved_by(advantage, lambda reward: reward * 3.0)
    require(away < 1e-4, f"claims scale_invariant, but three times the rewards move credit by {away:.3g}")


def _moved_by(advantage: Advantage, change: Callable[[np.ndarray], np.ndarray]) -> float:
    """How far credit moves when ``change`` happens to every reward."""
    away = 0.0
    for seed in range(3):
        batch = lease(advantage, seed)
        moved = dataclasses.replace(batch, reward_A=change(batch.reward_A), reward_K=change(batch.reward_K))
        found, wanted = (per_token(credit_of(advantage, each), each)[:2] for each in (moved, batch))
        away = max(away, _away(found, wanted))
    return away


def claim_needs_group(advantage: Advantage) -> None:
    """``needs_group``: an attempt alone in its group learns nothing, so a group size of 1 is refused; without the claim
    it learns something."""
    most = size_of(advantage, lease(advantage, sizes=(1, 1), extra=False))
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
    "others get no credit": others_get_no_credit,
    "attempts weigh the same whatever their length": attempts_weigh_the_same_whatever_their_length,
    "layout changes nothing": layout_changes_nothing,
    "vocabulary functions give what is asked": vocabulary_functions_give_what_is_asked,
    "imports no torch": imports_no_torch,
    "claims are known": claims_are_known,
    "claim zero_on_constant_group, both ways": claim_zero_on_constant_group,
    "claim shift_invariant, both ways": claim_shift_invariant,
    "claim scale_invariant": claim_scale_invariant,
    "claim needs_group, both ways": claim_needs_group,
}
