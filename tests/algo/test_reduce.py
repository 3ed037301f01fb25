"""Reductions against slow references, and what counts in a denominator."""

from __future__ import annotations

import numpy as np
import pytest

from trinity_core.algo.assemble import assemble
from trinity_core.algo.batch import POPULATIONS
from trinity_core.algo.reduce import REDUCTIONS, set_weights
from trinity_core.errors import ConfigError
from trinity_core.testing.world import World, experience, play


def slow(batch, values_N, reduction, *, by, denominator, population, limit):
    """The table of the reductions, in loops."""
    member_B = [True] * len(batch) if population == 0 else (batch.population_B == population).tolist()
    names = batch.attempt_B if by == "attempt" else np.arange(len(batch))
    sequences: dict[int, list[int]] = {}
    for n, row in enumerate(batch.row_N.tolist()):
        if member_B[row] and (batch.keep_N[n] or denominator == "all"):
            sequences.setdefault(int(names[row]), []).append(n)
    if not sequences:
        return 0.0
    kept = {name: sum(values_N[n] for n in tokens if batch.keep_N[n]) for name, tokens in sequences.items()}
    if reduction == "token_mean":
        return sum(kept.values()) / sum(map(len, sequences.values()))
    if reduction == "seq_mean_token_mean":
        return sum(kept[name] / len(sequences[name]) for name in sequences) / len(sequences)
    if reduction == "seq_mean_token_sum":
        return sum(kept.values()) / len(sequences)
    return sum(kept.values()) / (len(sequences) * limit)


def batch_with_drops(seed=0):
    batch = World.of(frozenset({"expert", "pairs"}), seed=seed).batch
    batch.keep_N = np.random.default_rng(seed).random(batch.num_actions) < 0.7
    batch.keep_N[batch.row_N == 1] = False  # one sequence without a kept token
    return batch


@pytest.mark.parametrize("denominator", ["all", "kept"])
@pytest.mark.parametrize("by", ["attempt", "experience"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_are_the_reduction(reduction, by, denominator):
    for seed in range(3):
        batch = batch_with_drops(seed)
        values_N = np.random.default_rng(seed).normal(size=batch.num_actions)
        set_weights(batch, reduction, by=by, denominator=denominator, max_attempt_tokens=9)
        for index, population in enumerate(POPULATIONS):
            wanted = slow(batch, values_N, reduction, by=by, denominator=denominator, population=index, limit=9)
            assert (batch.token_weight[population] * values_N).sum() == pytest.approx(wanted, rel=1e-12)


def test_a_mean_of_ones_is_one():
    batch = World.of(frozenset({"expert", "pairs"})).batch
    for reduction in ("token_mean", "seq_mean_token_mean"):
        set_weights(batch, reduction)
        for population in POPULATIONS:
            assert batch.token_weight[population].sum() == pytest.approx(1.0)
            assert batch.sequence_weight[population].sum() == pytest.approx(1.0)
    assert batch.pair_weight["all"].sum() == pytest.approx(1.0)


def two_attempts(by):
    """One attempt of one sequence, one of eight; every token's value is +1 in the first and −1 in the second."""
    rng = np.random.default_rng(0)
    group = play(rng, [[5], [1]], name="g")
    group.attempts[1].experiences += [experience(rng, [1, 2, n % 6 + 1], [2 + n % 3]) for n in range(7)]
    batch = assemble([group], seed=0, step=0)
    set_weights(batch, "seq_mean_token_mean", by=by)
    return batch, np.where(batch.attempt_B == 0, 1.0, -1.0)


def test_attempts_of_one_and_of_eight_experiences_weigh_the_same_by_attempt():
    batch, sign_B = two_attempts("attempt")
    assert (batch.token_weight["all"] * sign_B[batch.row_N]).sum() == pytest.approx(0.0, abs=1e-15)
    assert (batch.sequence_weight["all"] * sign_B).sum() == pytest.approx(0.0, abs=1e-15)
    assert batch.sequence_weight["all"][0] == pytest.approx(0.5)
    assert batch.sequence_weight["all"][1:] == pytest.approx(0.5 / 8)


def test_by_experience_the_longer_attempt_weighs_eight_times():
    """1/9 against 8/9: the mean of +1 and eight −1 is −7/9."""
    batch, sign_B = two_attempts("experience")
    assert (batch.token_weight["all"] * sign_B[batch.row_N]).sum() == pytest.approx(-7 / 9)
    assert (batch.sequence_weight["all"] * sign_B).sum() == pytest.approx(-7 / 9)


def test_dropped_tokens_stay_in_the_denominator_unless_only_kept_ones_count():
    """Two tokens of three are kept, each of value 3: 6 / 3 = 2 over all, 6 / 2 = 3 over the kept."""
    batch = assemble([play(np.random.default_rng(0), [[3]], name="g")], seed=0, step=0)
    batch.keep_N[1] = False
    for denominator, wanted in (("all", 2.0), ("kept", 3.0)):
        set_weights(batch, "token_mean", denominator=denominator)
        assert (batch.token_weight["all"] * 3.0).sum() == pytest.approx(wanted)


def test_an_empty_population_weighs_nothing():
    batch = World.of(frozenset()).batch
    set_weights(batch, "seq_mean_token_mean")
    assert not batch.token_weight["expert"].any() and not batch.sequence_weight["expert"].any()
    assert batch.denominators["expert"] == {"tokens": 0, "sequences": 0, "pairs": 0}
    empty = assemble([], seed=0, step=0)
    set_weights(empty, "token_mean")
    assert empty.denominators["all"]["tokens"] == 0


def test_denominators_are_counted_per_population():
    batch = World.of(frozenset({"expert", "pairs"})).batch
    set_weights(batch, "token_mean")
    for key in ("tokens", "sequences"):
        assert batch.denominators["all"][key] == batch.denominators["own"][key] + batch.denominators["expert"][key]
    assert batch.denominators["all"]["pairs"] == 3


@pytest.mark.parametrize(
    "words", [("sum", {}), ("token_mean", {"by": "token"}), ("token_mean", {"denominator": "some"})]
)
def test_an_unknown_word_is_refused_with_the_known_ones(words):
    with pytest.raises(ConfigError, match="Choose"):
        set_weights(World.of(frozenset()).batch, words[0], **words[1])
