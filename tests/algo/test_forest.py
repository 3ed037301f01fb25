"""The prefix forest: what is shared is exactly equal, actions are own, and a selection keeps what it can."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from algo_tiny import update

from trinity_core.algo.assemble import assemble
from trinity_core.algo.cut import mini_batches, packed_tokens, predictor_N, uniform_N
from trinity_core.algo.forest import grow
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


def test_siblings_share_their_prompt_and_the_first_is_the_root():
    batch = batch_of(group(experience([1, 2, 3, 4], [2, 3]), experience([1, 2, 5], [2]), experience([1, 2, 6], [2])))
    assert batch.parent_B.tolist() == [-1, 0, 0]
    assert batch.prefix_len_B.tolist() == [0, 2, 2]
    assert packed_tokens(batch, np.arange(3)) == 4 + 1 + 1


def test_equal_first_actions_are_not_shared():
    """Both sampled a 3 after [1, 2]: each keeps its own, so its log-probability gets a gradient in each."""
    batch = batch_of(group(experience([1, 2, 3, 4], [2, 3]), experience([1, 2, 3, 5], [2, 3])))
    assert batch.prefix_len_B.tolist() == [0, 2]


def test_the_first_action_is_predicted_by_the_last_shared_position():
    batch = batch_of(group(experience([1, 2, 3], [2]), experience([1, 2, 4], [2])))
    own = batch.action_N - batch.offsets_B1[batch.row_N]
    assert (predictor_N(batch) == batch.action_N - 1).all()
    assert own[1] - 1 == batch.prefix_len_B[1] - 1


def test_a_branch_shares_its_history_with_what_it_branched_from():
    """A branch renders [1, 2, 3, 9] again, the 3 as history: all four tokens are shared although one is an action there."""
    first = experience([1, 2, 3, 9, 4], [2, 4])
    branch = experience([1, 2, 3, 9, 5], [4], index=1, parent=0)
    one = Group(
        "run/g",
        Task("t", ()),
        [Attempt([first, branch], score=Ok(1.0)), Attempt([experience([1, 2, 7], [2])], score=Ok(0.0))],
    )
    batch = batch_of(one)
    assert batch.parent_B.tolist() == [-1, 0, 0]
    assert batch.prefix_len_B.tolist() == [0, 4, 2]


def test_different_groups_share_nothing():
    batch = batch_of(group(experience([1, 2, 3], [2])), group(experience([1, 2, 4], [2]), name="h"))
    assert batch.parent_B.tolist() == [-1, -1]


def test_the_longest_prefix_wins_and_the_earliest_on_a_tie():
    sequences = [np.array([1, 2, 7]), np.array([1, 2, 8]), np.array([1, 2, 8, 9, 5]), np.array([1, 2, 8, 9, 6])]
    assert grow(sequences, [2, 2, 4, 4]) == ([-1, 0, 1, 2], [0, 2, 3, 4])


@pytest.mark.parametrize("seed", range(5))
def test_a_selection_shares_only_equal_tokens_and_own_actions(seed):
    batch = update()
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(batch))[: rng.integers(1, len(batch) + 1)]
    part = batch.select(rows)
    first_B = part.first_action_B()
    for row in range(len(part)):
        parent, length = part.parent_B[row], part.prefix_len_B[row]
        assert parent < row  # a parent stands before its children
        assert length <= first_B[row]
        assert (length == 0) == (parent == -1)
        if parent >= 0:
            mine = part.tokens_T[part.offsets_B1[row] :][:length]
            assert np.array_equal(mine, part.tokens_T[part.offsets_B1[parent] :][:length])
            assert part.group_B[row] == part.group_B[parent]


def test_the_first_selected_sibling_becomes_the_root():
    batch = batch_of(group(*(experience([1, 2, 3 + n], [2]) for n in range(4))))
    part = batch.select([2, 1, 3])
    assert part.parent_B.tolist() == [-1, 0, 0]
    assert part.prefix_len_B.tolist() == [0, 2, 2]
    back = batch.select([2, 0])  # the old root after its child: it is a child now
    assert back.parent_B.tolist() == [-1, 0]


def test_a_grandchild_falls_back_on_what_all_share():
    history = [1, 2, 3, 9]
    first, branch = experience([*history, 4], [2, 4]), experience([*history, 5], [4], index=1, parent=0)
    one = Group(
        "run/g",
        Task("t", ()),
        [Attempt([experience([1, 2, 8], [2])], score=Ok(0.0)), Attempt([first, branch], score=Ok(1.0))],
    )
    batch = batch_of(one)
    assert batch.parent_B.tolist() == [-1, 0, 1]
    assert batch.select([0, 2]).prefix_len_B.tolist() == [0, 2]


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
