"""The contract of advantages holds for every option, and its rules catch what they are for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from test_advantage_references import CASES, made

from trinity_core.algo import AdvantageBatch, Credit, along, groups
from trinity_core.protocols import Advantage
from trinity_core.testing.contracts import advantage
from trinity_core.testing.rules import NotApplicable

RULES = {name: rule for name, rule in advantage.RULES.items() if name != "imports no torch"}


@pytest.mark.parametrize(("name", "fields"), CASES, ids=[f"{name}-{fields}" for name, fields in CASES])
def test_the_contract_holds_under_every_option(name, fields):
    """Claims too: an option that changes what is true of an advantage changes its claims."""
    applied = 0
    for rule, check in RULES.items():
        if fields.get("drop") and rule == "order changes nothing":
            continue  # which of equal attempts leave follows from their order
        try:
            check(made(name, fields))
        except NotApplicable:
            continue
        except AssertionError as broken:
            raise AssertionError(f"{rule}: {broken}") from broken
        applied += 1
    assert applied >= 10


def wrong(compute, *, needs=(), claims=(), **methods):
    body = {"__call__": lambda self, batch: compute(batch), "needs": lambda self: frozenset(needs), **methods}
    return type("Wrong", (Advantage,), {**body, "claims": frozenset(claims)})()


def mean_over_calls(batch: AdvantageBatch) -> Credit:
    """The mean of the lease, an attempt of many calls counted many times."""
    own_K = batch.baseline_A[batch.attempt_K]
    mean = batch.reward_A[batch.attempt_K[own_K]].mean()
    return Credit(np.where(batch.baseline_A, np.nan_to_num(batch.reward_A) - mean, 0.0))


def mean_over_tokens(batch: AdvantageBatch) -> Credit:
    own_N = batch.baseline_A[batch.attempt_N]
    mean = batch.reward_A[batch.attempt_N[own_N]].mean()
    return Credit(np.where(batch.baseline_A, np.nan_to_num(batch.reward_A) - mean, 0.0))


def discounted_by_place(batch: AdvantageBatch) -> Credit:
    """Counts tokens of the training batch, where a sequence per call lies in another order."""
    place_N = np.arange(len(batch.attempt_N)) if batch.order_N is None else batch.order_N
    return Credit(np.where(along.own(batch), 0.9**place_N, 0.0), per="token")


def keeps_first(batch: AdvantageBatch) -> Credit:
    """Leaves out tokens by their place in the lease."""
    keep_N = np.arange(len(batch.attempt_N)) > 2
    return Credit(groups.centered(batch), keep_N=keep_N)


def credits_experts(batch: AdvantageBatch) -> Credit:
    return Credit(np.where(batch.role_A == "expert", 1.0, groups.centered(batch)))


def singleton_raw(batch: AdvantageBatch) -> Credit:
    """A group of one gets its raw reward: mean 0, deviation 1."""
    alone_A = batch.baseline_A & (groups.count(batch) == 1)
    return Credit(np.where(alone_A, np.nan_to_num(batch.reward_A), groups.centered(batch)))


def lease_mean(batch: AdvantageBatch) -> Credit:
    """Exactly 0 where the whole lease is constant, not where a group is."""
    return Credit(groups.centered(dataclasses.replace(batch, group_A=np.zeros_like(batch.group_A))))


def spoils_tokens(batch: AdvantageBatch) -> Credit:
    batch.tokens["old_logp"] *= 0.5
    return Credit(groups.centered(batch))


ZERO = {"zero_on_constant_group", "shift_invariant", "needs_group"}
MISTAKES = {
    "a mean over calls": ("attempts weigh the same whatever their length", wrong(mean_over_calls)),
    "a mean over tokens": ("attempts weigh the same whatever their length", wrong(mean_over_tokens)),
    "discounting by place": ("layout changes nothing", wrong(discounted_by_place)),
    "keep by place": ("order changes nothing", wrong(keeps_first)),
    "credit for experts": ("others get no credit", wrong(credits_experts)),
    "a singleton's raw reward": ("claim zero_on_constant_group, both ways", wrong(singleton_raw, claims=ZERO)),
    "constant in the lease alone": ("claim zero_on_constant_group, both ways", wrong(lease_mean, claims=ZERO)),
    "an array changed in place": ("is pure", wrong(spoils_tokens)),
    "keep of a wrong length": (
        "gives finite credit",
        wrong(lambda b: Credit(groups.centered(b), keep_N=np.ones(1, np.bool_))),
    ),
    "returns of a wrong length": (
        "gives finite credit",
        wrong(lambda b: Credit(groups.centered(b), returns_N=np.ones(1))),
    ),
    "infinite returns": (
        "gives finite credit",
        wrong(lambda b: Credit(groups.centered(b), returns_N=np.full(len(b.attempt_N), np.inf))),
    ),
    "a function that is not there": (
        "vocabulary functions give what is asked",
        wrong(lambda b: Credit(groups.centered(b)), needs={"vocab:spread"}),
    ),
    "a function with another name": (
        "vocabulary functions give what is asked",
        wrong(
            lambda b: Credit(groups.centered(b)),
            needs={"vocab:spread"},
            vocab=lambda self: {"spread": lambda logits, aux: {"other": logits.sum(-1)}},
        ),
    ),
    "a function over the chunk": (
        "vocabulary functions give what is asked",
        wrong(
            lambda b: Credit(groups.centered(b)),
            needs={"vocab:spread"},
            vocab=lambda self: {"spread": lambda logits, aux: {"spread": logits.sum(-1) - logits.mean()}},
        ),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake):
    rule, component = MISTAKES[mistake]
    with pytest.raises(AssertionError):
        RULES[rule](component)


def test_the_right_one_passes_where_the_mistakes_fail():
    right = wrong(lambda b: Credit(groups.centered(b)), claims=ZERO)
    for rule in {rule for rule, _ in MISTAKES.values()} - {"vocabulary functions give what is asked"}:
        RULES[rule](right)
