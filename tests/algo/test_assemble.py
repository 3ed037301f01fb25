"""Groups become a batch: who is trained, what an action is, where credit goes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from trinity_core.algo.assemble import action_tokens, advantage_batch, apply_credit, assemble, penalise
from trinity_core.algo.batch import Credit
from trinity_core.errors import DataError
from trinity_core.testing.world import play
from trinity_core.types import Experience, Extra, Fault, Invalid, Ok, Origin


def rng():
    return np.random.default_rng(0)


def test_only_scored_samples_and_given_attempts_are_trained():
    group = play(rng(), [[2], [2], [2], [2], [2]], name="g", roles=["sample", "sample", "expert", "greedy", "sample"])
    group.attempts[1].score = Fault("timeout")
    group.attempts[4].score = Invalid("no gold")
    batch = assemble([group], seed=0, step=0)
    assert batch.attempt_B.tolist() == [0, 2]
    assert batch.population_B.tolist() == [1, 2]
    assert batch.counts["untrained_attempts"] == 3
    assert np.isnan(batch.sampler_logp_N[batch.row_N == 1]).all()
    assert np.isnan(batch.reward_B[1])


def test_numbers_of_attempts_and_calls_count_those_left_out_too():
    group = play(rng(), [[2], [2, 1], [3]], name="g")
    group.attempts[0].score = Fault("broken")
    batch = assemble([group, play(rng(), [[1]], name="h")], seed=0, step=0)
    advantages = advantage_batch([group, play(rng(), [[1]], name="h")], batch, set())
    assert batch.attempt_B.tolist() == [1, 2, 3]
    assert np.isnan(advantages.reward_A[0])
    assert advantages.step_K[batch.call_N].tolist() == [0, 0, 1, 0, 0, 0, 0]
    assert advantages.attempt_K[batch.call_N].tolist() == batch.attempt_B[batch.row_N].tolist()


def test_action_tokens_of_many_experiences_are_those_of_each():
    many = []
    for length in (5, 0, 1, 7, 0, 3):
        origin_T = rng().integers(0, 4, length).astype(np.uint8)
        origin_T[:1] = Origin.SAMPLED  # a first token is no action, whatever its origin
        many.append(Experience(np.zeros(length, np.int32), origin_T, np.zeros(length, np.float32)))
    offsets_B1, num_B, action_N, origin_N = action_tokens(many)
    assert offsets_B1.tolist() == [0, 5, 5, 6, 13, 13, 16]
    assert num_B.tolist() == [len(experience.action_T) for experience in many]
    assert action_N.tolist() == [
        offset + place for offset, experience in zip(offsets_B1, many) for place in experience.action_T
    ]
    assert origin_N.tolist() == [origin for experience in many for origin in experience.origin_T[experience.action_T]]


def test_a_sampled_token_without_a_logp_is_no_action():
    """And what belongs to the others stays theirs: an extra of actions, the attempt's positions, the calls."""
    group = play(rng(), [[3], [1], [2, 1]], name="g")
    first, second, third = (attempt.experiences[0] for attempt in group.attempts)
    first.extras = {"x": Extra(np.array([1.0, 2.0, 3.0]), "action")}
    third.extras = {"x": Extra(np.array([4.0, 5.0, 6.0]), "action")}
    first.logp_T[first.action_T[1]] = second.logp_T[second.action_T[0]] = third.logp_T[third.action_T[0]] = np.nan
    batch = assemble([group], seed=0, step=0)
    assert (batch.counts["missing_logp"], batch.counts["empty_sequences"]) == (3, 1)
    assert batch.attempt_B.tolist() == [0, 2]
    assert batch.extras["x"][0].tolist() == [1.0, 3.0, 5.0, 6.0]
    assert batch.position_N.tolist() == [0, 1, 0, 1]
    assert batch.call_N.tolist() == [0, 0, 2, 3]
    wanted = [*first.tokens_T[first.action_T[[0, 2]]], *third.tokens_T[third.action_T[1:]]]
    assert batch.tokens_T[batch.action_N].tolist() == wanted


def test_the_temperature_of_a_token_is_its_calls():
    group = play(rng(), [[1, 2]], name="g")
    calls = group.attempts[0].experiences[0].calls
    calls[0].sampling = dataclasses.replace(calls[0].sampling, temperature=0.7)
    calls[1].sampling = dataclasses.replace(calls[1].sampling, temperature=0.0)  # greedy: taken at 1
    assert assemble([group], seed=0, step=0).temperature_N == pytest.approx([0.7, 1.0, 1.0])


def test_the_runs_id_enters_no_key():
    one, other = play(rng(), [[2]], name="g"), play(rng(), [[2]], name="g")
    other.id = "another-run/g"
    keys = [assemble([group], seed=0, step=0).attempt_key_B.tolist() for group in (one, other)]
    assert keys[0] == keys[1]


def test_a_sequence_without_an_action_is_left_out():
    group = play(rng(), [[2], [3]], name="g")
    group.attempts[0].experiences[0].origin_T[:] = 0
    batch = assemble([group], seed=0, step=0)
    assert (len(batch), batch.counts["empty_sequences"]) == (1, 1)
    assert len(assemble([], seed=0, step=0)) == 0


def test_tokens_stand_in_the_attempts_own_order_of_calls():
    """The first experience goes on after the branch: call 0, then the branch's call 1, then call 2 of the first."""
    group = play(rng(), [[2, 1]], name="g")
    first = group.attempts[0].experiences[0]
    branch = play(rng(), [[3]], name="g").attempts[0].experiences[0]
    first.calls[1].step, branch.calls[0].step = 2, 1
    group.attempts[0].experiences.append(branch)
    batch = assemble([group], seed=0, step=0)
    assert batch.position_N.tolist() == [0, 1, 5, 2, 3, 4]
    advantages = advantage_batch([group], batch, {"sampler_logp"})
    assert advantages.order_N.tolist() == [0, 1, 3, 4, 5, 2]
    assert advantages.tokens["sampler_logp"] == pytest.approx(batch.sampler_logp_N[[0, 1, 3, 4, 5, 2]])


def test_the_reward_sits_on_the_last_token_of_the_last_call():
    group = play(rng(), [[2, 1], [3]], name="g")
    first = group.attempts[0].experiences[0]
    branch = play(rng(), [[2]], name="g").attempts[0].experiences[0]
    first.calls[1].step, branch.calls[0].step = 2, 1
    group.attempts[0].experiences.append(branch)
    group.attempts[0].score, group.attempts[1].score = Ok(3.0), Ok(-1.0)
    batch = assemble([group], seed=0, step=0)
    advantages = advantage_batch([group], batch, set())
    assert advantages.reward_N().tolist() == [0, 0, 0, 0, 3.0, 0, 0, -1.0]
    credit = Credit(advantages.reward_N(), per="token")
    apply_credit(batch, advantages, credit)
    # back in the batch's order: the attempt's last token is the third of its first sequence
    assert batch.advantage_N.tolist() == [0, 0, 3.0, 0, 0, 0, 0, -1.0]


def test_credit_per_attempt_and_per_call_reaches_each_token():
    group = play(rng(), [[2, 1], [3]], name="g")
    for per, value, wanted in [
        ("attempt", [5.0, 7.0], [5, 5, 5, 7, 7, 7]),
        ("call", [1.0, 2.0, 3.0], [1, 1, 2, 3, 3, 3]),
    ]:
        batch = assemble([group], seed=0, step=0)
        apply_credit(batch, advantage_batch([group], batch, set()), Credit(np.array(value), per=per))
        assert batch.advantage_N.tolist() == wanted


def test_a_kept_out_token_stays_in_the_batch_and_does_not_count():
    group = play(rng(), [[2], [2]], name="g")
    batch = assemble([group], seed=0, step=0)
    keep_N = np.array([True, False, True, True])
    apply_credit(batch, advantage_batch([group], batch, set()), Credit(np.ones(4), "token", keep_N=keep_N))
    assert batch.keep_N.tolist() == keep_N.tolist()


@pytest.mark.parametrize(
    ("credit", "words"),
    [
        (Credit(np.ones(3)), "shape"),
        (Credit(np.ones(2), per="sequence"), "per"),
        (Credit(np.array([1.0, np.nan])), "not finite"),
        (Credit(np.ones(2), returns_N=np.ones(1)), "returns_N"),
    ],
)
def test_wrong_credit_is_refused(credit, words):
    group = play(rng(), [[2], [2]], name="g")
    batch = assemble([group], seed=0, step=0)
    with pytest.raises(DataError, match=words):
        apply_credit(batch, advantage_batch([group], batch, set()), credit)


def test_kl_in_the_reward_is_per_token_and_counts_once():
    """k1 = old − ref = 0.5 at each of 3 tokens, coefficient 0.1: the attempt's reward 2 becomes 2 − 0.15 = 1.85."""
    group = play(rng(), [[3]], name="g")
    group.attempts[0].score = Ok(2.0)
    batch = assemble([group], seed=0, step=0)
    batch.measured = {"old_logp": np.full(3, -1.0), "ref_logp": np.full(3, -1.5)}
    advantages = penalise(advantage_batch([group], batch, {"old_logp", "ref_logp"}), 0.1)
    assert advantages.reward_A == pytest.approx([1.85])
    assert advantages.reward_N() == pytest.approx([-0.05, -0.05, 1.95])


def test_what_was_not_measured_is_named():
    group = play(rng(), [[2]], name="g")
    batch = assemble([group], seed=0, step=0)
    with pytest.raises(DataError, match="value"):
        advantage_batch([group], batch, {"value"})


def test_extras_travel_along_their_axis():
    group = play(rng(), [[2], [1]], name="g")
    first = group.attempts[0].experiences[0]
    first.extras = {
        "token": Extra(np.arange(len(first.tokens_T)), "token"),
        "action": Extra(np.array([0.5, 1.5]), "action"),
        "sequence": Extra(np.array([7.0]), "sequence"),
    }
    batch = assemble([group], seed=0, step=0)
    assert batch.extras["token"][0].tolist() == [*range(len(first.tokens_T)), -1, -1, -1, -1]
    assert batch.extras["action"][0][:2].tolist() == [0.5, 1.5] and np.isnan(batch.extras["action"][0][2])
    assert batch.select([1, 0]).extras["sequence"][0][1] == 7.0


def test_contradicting_extras_are_refused():
    group = play(rng(), [[1], [1]], name="g")
    for attempt, axis in zip(group.attempts, ("action", "sequence")):
        attempt.experiences[0].extras = {"x": Extra(np.zeros(1), axis)}
    with pytest.raises(DataError, match="extra 'x'"):
        assemble([group], seed=0, step=0)


def test_a_pair_that_lost_a_side_is_counted():
    group = play(rng(), [[2], [2]], name="g", pairs=[(0, 1)])
    assert assemble([group], seed=0, step=0).pairs_P2.tolist() == [[0, 1]]
    group.attempts[1].score = Fault("timeout")
    batch = assemble([group], seed=0, step=0)
    assert len(batch.pairs_P2) == 0 and batch.counts["lost_pairs"] == 1


def test_pairs_name_attempts_of_their_own_group():
    groups = [play(rng(), [[2], [2]], name=name, pairs=[(1, 0)]) for name in "gh"]
    groups[0].attempts[0].score = Fault("timeout")
    groups[0].pairs = [(1, 0), (1, 2), (1, -1)]  # none of these is the other group's attempt
    batch = assemble(groups, seed=0, step=0)
    assert batch.pairs_P2.tolist() == [[2, 1]] and batch.counts["lost_pairs"] == 3
    groups[1].attempts[0].experiences *= 2
    with pytest.raises(DataError, match=r"h: a side of pair \(1, 0\) has more than one sequence"):
        assemble(groups, seed=0, step=0)
