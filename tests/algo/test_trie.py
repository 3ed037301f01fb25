"""The prefix trie: what is shared is exactly equal, and everything that is equal is shared. Selections keep their arrays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from algo_tiny import update

from trinity_core.algo.assemble import assemble
from trinity_core.algo.cut import mini_batches, packed_tokens, uniform_N
from trinity_core.algo.trie import Trie
from trinity_core.testing.world import World
from trinity_core.types import Attempt, Call, Experience, Group, Ok, Origin, Sampling, Task


def experience(tokens, actions, **fields):
    origin_T = np.zeros(len(tokens), dtype=np.uint8)
    origin_T[list(actions)] = Origin.SAMPLED
    logp_T = np.where(origin_T == Origin.SAMPLED, -1.0, np.nan).astype(np.float32)
    call = Call(min(actions), max(actions) + 1, 0, [(0, min(actions))], Sampling())
    return Experience(np.array(tokens, dtype=np.int32), origin_T, logp_T, [call], **fields)


def group(*experiences, name="g"):
    attempts = [Attempt([one], score=Ok(float(n)), index=n) for n, one in enumerate(experiences)]
    return Group(f"run/{name}", Task("t", ()), attempts)


def batch_of(*groups):
    return assemble(groups, seed=0, step=0)


def shares(batch):
    """By sorted sequence: what it has in common with the one before."""
    return Trie(batch).shared_B.tolist()


def test_what_begins_alike_is_counted_once():
    """Inputs are [1 2 3], [1 2], [1 2]: the last token of an answer predicts nothing. Together they are 1, 2 and 3."""
    batch = batch_of(group(experience([1, 2, 3, 4], [2, 3]), experience([1, 2, 5], [2]), experience([1, 2, 6], [2])))
    assert Trie(batch).need_B.tolist() == [3, 2, 2]
    assert packed_tokens(batch, np.arange(3)) == 3
    assert packed_tokens(batch, np.arange(3), share=False) == 7


def test_answers_that_begin_alike_share_their_first_words():
    """[1 2 3] and [1 2 3 7]: 3 is an action in both, and input of what comes next in both: one hidden state."""
    batch = batch_of(group(experience([1, 2, 3, 4], [2, 3]), experience([1, 2, 3, 7, 5], [2, 3, 4])))
    assert packed_tokens(batch, np.arange(2)) == 4


def test_equal_sequences_are_one():
    batch = batch_of(group(*(experience([1, 2, 3, 4], [2, 3]) for _ in range(3))))
    assert packed_tokens(batch, np.arange(3)) == 3


def test_groups_share_what_their_prompts_begin_with():
    """[9 9 1] and [9 9 2], each with two answers of one token: 9 9 1 and 2."""
    groups = [group(experience([9, 9, n, 5], [3]), experience([9, 9, n, 6], [3]), name=f"g{n}") for n in (1, 2)]
    assert packed_tokens(batch_of(*groups), np.arange(4)) == 4


def test_tokens_are_compared_as_numbers_and_not_as_bytes():
    """256 is the bytes 0 1 in little-endian order and would stand before 2."""
    batch = batch_of(group(experience([256, 1, 3], [2]), experience([2, 1, 3], [2]), experience([256, 2, 3], [2])))
    assert [batch.tokens_T[batch.offsets_B1[row]] for row in Trie(batch).order_B] == [2, 256, 256]
    assert shares(batch) == [0, 0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_cells_of_any_selection_are_its_different_prefixes(seed):
    """Counted the slow way: the set of all prefixes of all inputs."""
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(1, 4, size=rng.integers(2, 12)).tolist() for _ in range(40)]
    batch = batch_of(group(*(experience(tokens, [len(tokens) - 1]) for tokens in sequences)))
    trie = Trie(batch)
    for size in (1, 2, 7, 40):
        rows = rng.permutation(40)[:size]
        prefixes = {tuple(sequences[row][:end]) for row in rows for end in range(1, len(sequences[row]))}
        assert trie.cells(rows) == len(prefixes)
        taken, shared = trie.sorted(rows)
        assert sorted(taken.tolist()) == sorted(rows.tolist())
        for before, after, common in zip(taken, taken[1:], shared[1:]):
            assert sequences[before][:common] == sequences[after][:common]


def test_selecting_cuts_every_array_along():
    batch = update()
    order = np.random.default_rng(0).permutation(len(batch))
    part = batch.select(order)
    for new, old in enumerate(order):
        mine, theirs = part.row_N == new, batch.row_N == old
        assert np.array_equal(part.tokens_T[part.action_N[mine]], batch.tokens_T[batch.action_N[theirs]])
        for name in ("sampler_logp_N", "temperature_N", "position_N", "call_N", "advantage_N", "keep_N"):
            assert np.array_equal(getattr(part, name)[mine], getattr(batch, name)[theirs], equal_nan=True), name
        assert np.array_equal(part.measured["old_logp"][mine], batch.measured["old_logp"][theirs])
        assert np.array_equal(part.measured["teacher_hidden"][mine], batch.measured["teacher_hidden"][theirs])
        assert np.array_equal(part.token_weight["own"][mine], batch.token_weight["own"][theirs])
    sides = {tuple(order[pair].tolist()) for pair in part.pairs_P2}
    assert sides == {tuple(pair) for pair in batch.pairs_P2.tolist()}
    assert len(batch.select([]).tokens_T) == 0


def test_a_pair_with_one_side_left_out_is_left_out():
    batch = update()
    chosen = int(batch.pairs_P2[0, 0])
    assert len(batch.select([chosen]).pairs_P2) == 0


def test_units_are_what_a_scope_must_see_whole():
    batch = update()
    pairs = batch.unit_B("pair")
    assert all(pairs[chosen] == pairs[rejected] for chosen, rejected in batch.pairs_P2)
    assert len(np.unique(batch.unit_B("token"))) == len(np.unique(batch.unit_B("sequence"))) == len(batch)
    assert np.array_equal(batch.unit_B("group"), batch.group_B)
    assert len(np.unique(batch.unit_B("batch"))) == 1


def test_uniform_numbers_are_the_same_wherever_the_token_lies():
    batch = update()
    whole = uniform_N(batch)
    assert ((whole >= 0) & (whole < 1)).all()
    assert len(np.unique(whole)) == len(whole)
    order = np.random.default_rng(0).permutation(len(batch))
    for rows in (order, order[:3], order[3:]):
        part = batch.select(rows)
        assert np.array_equal(uniform_N(part), whole[part.extras["place"][0]])
    for changed in ({"seed": 9}, {"step": 9}, {"update": 9}):
        other = update()
        for name, value in changed.items():
            setattr(other, name, value)
        assert not np.isclose(uniform_N(other), whole).any()


def test_uniform_numbers_are_uniform():
    batch = update()
    many = []
    for batch.step in range(200):
        many.append(uniform_N(batch))
    flat = np.concatenate(many)
    assert abs(flat.mean() - 0.5) < 0.01 and abs(flat.var() - 1 / 12) < 0.005


def test_mini_batches_are_whole_groups_each_once_per_epoch_and_shuffled_by_epoch():
    batch = update()
    updates = list(mini_batches(batch, epochs=3, mini_batches=2))
    assert [one.update for one in updates] == list(range(6))
    seen = [tuple(sorted(set(one.group_B.tolist()))) for one in updates]
    for epoch in range(3):
        first, second = seen[2 * epoch : 2 * epoch + 2]
        assert sorted(first + second) == sorted(set(batch.group_B.tolist()))
    assert len(set(seen[::2])) > 1
    again = [tuple(sorted(set(one.group_B.tolist()))) for one in mini_batches(batch, epochs=3, mini_batches=2)]
    assert again == seen
    assert not any(one.token_weight for one in updates)  # denominators are per update


def test_there_is_no_empty_update():
    world = World.of(frozenset())
    assert len(list(mini_batches(world.batch, mini_batches=50))) == len(np.unique(world.batch.group_B))
    assert all(a.num_actions for a, _ in itertools.pairwise(mini_batches(world.batch, mini_batches=50)))
