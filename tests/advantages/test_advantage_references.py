"""Every advantage against a slow reference, on random leases: uneven groups, several calls, faults, greedy and expert attempts."""

from __future__ import annotations

import dataclasses
import importlib

import numpy as np
import pytest
import slow_advantages
from random_leases import random_lease

from trinity_core.builtins.plugin import trinity_advantages
from trinity_core.errors import DataError
from trinity_core.testing.contracts.advantage import credit_of, per_token

OPTIONS = {
    "grpo": [{}, {"normalize": False}, {"std_level": "batch"}],
    "reinforce_pp": [{}, {"gamma": 0.9}, {"baseline": "group"}, {"gamma": 0.5, "baseline": "group"}],
    "opmd": [{}, {"baseline": "logsumexp"}, {"baseline": "logsumexp", "tau": 0.3}],
    "gae": [
        {},
        {"gamma": 0.9, "lam": 0.8},
        {"lam": 0.0, "whiten": False},
        {"gamma": 0.7, "whiten": False, "bootstrap_truncated": True},
    ],
    "asymre": [{}, {"shift": 0.3}],
    "rec": [{}, {"normalize": True}, {"drop": "balance"}, {"drop": "balance", "normalize": True}],
    "step_wise_grpo": [{}, {"step_norm": True}, {"final": "last_step"}, {"std_level": "batch"}, {"normalize": False}],
    "gigpo": [{}, {"normalize": True}, {"gamma": 0.5, "omega": 0.3}, {"omega": 0.0}],
    "on_policy_distill": [{}, {"coef": 0.2}],
    "jsd_sampled": [{}, {"beta": 0.1}],
    "clip_b": [{}, {"mu": 0.5}],
    "clip_v": [{}, {"mu": 0.3, "max_share": 0.1}, {"mu": 0.0, "max_share": 1.0}],
    "raft": [{}, {"threshold": 0.5}],
}
CASES = [(name, fields) for name in trinity_advantages() for fields in OPTIONS.get(name, [{}])]


def made(name: str, fields: dict):
    module, _, cls = trinity_advantages()[name].partition(":")
    return getattr(importlib.import_module(module), cls)(**fields)


@pytest.mark.parametrize(("name", "fields"), CASES, ids=[f"{name}-{fields}" for name, fields in CASES])
def test_an_advantage_equals_its_slow_reference(name, fields):
    for seed in range(40):
        batch = random_lease(seed, extras=seed % 2 == 0)
        try:
            credit = credit_of(made(name, fields), batch)
        except DataError:  # no call of this lease has a state
            assert name == "gigpo" and not (batch.state_K[batch.baseline_A[batch.attempt_K]] != "").any()
            continue
        advantage_N, keep_N, returns_N = per_token(credit, batch)
        wanted, kept, returns = getattr(slow_advantages, name)(batch, **fields)
        assert advantage_N == pytest.approx(np.array(wanted), rel=1e-9, abs=1e-9), seed
        assert keep_N.tolist() == kept, seed
        if returns is not None:
            assert returns_N == pytest.approx(np.array(returns), rel=1e-9, abs=1e-9), seed


@pytest.mark.parametrize("name", ["reinforce_pp", "gae"])
def test_tokens_of_attempts_may_stand_in_turn(name):
    """Attempts go by number, wherever their tokens stand, as long as each one's own are in order."""
    batch = random_lease(3)
    order = np.argsort(np.random.default_rng(0).permutation(len(batch.attempt_N)))
    # a random merge that keeps each attempt's order: its places, sorted, go to its tokens
    places = np.concatenate([np.sort(order[batch.attempt_N == a]) for a in range(len(batch.reward_A))])
    take = np.argsort(places)
    mixed = dataclasses.replace(
        batch,
        attempt_N=batch.attempt_N[take],
        call_N=batch.call_N[take],
        tokens={key: array[take] for key, array in batch.tokens.items()},
    )
    assert (np.diff(mixed.attempt_N) < 0).any()
    advantage = made(name, {})
    assert advantage(mixed).advantage == pytest.approx(advantage(batch).advantage[take])


def test_every_advantage_has_a_reference():
    assert all(callable(getattr(slow_advantages, name, None)) for name in trinity_advantages())
