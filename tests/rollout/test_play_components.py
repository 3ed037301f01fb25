"""The workflows, worlds, rewards, tasksets, selector and operator that ship."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter

import pytest

from trinity_core.builtins.environments.guess import Guess
from trinity_core.builtins.operators.dynamic_sampling import DynamicSampling
from trinity_core.builtins.rewards.exact import Exact
from trinity_core.builtins.selectors.shuffled import Shuffled
from trinity_core.builtins.tasksets.guess import GuessTasks
from trinity_core.builtins.tasksets.numbers import SYSTEM, WORDS, Numbers, split_of
from trinity_core.builtins.workflows.multi_turn import MultiTurn
from trinity_core.builtins.workflows.single_turn import SingleTurn
from trinity_core.errors import ConfigError, DataError
from trinity_core.testing.fakes import FakeAttempt, FakeRun, FakeTask, fake_group
from trinity_core.testing.scripted import Scripted, parts, run_of, scheduler_of
from trinity_core.types import Fault, Invalid, Ok

# --- exact ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "gold", "value"),
    [
        ("42", "42", 1.0),
        ("  42.\n\n", "42", 1.0),
        ("I add them.\n42", "42", 1.0),
        ("42\nor 43", "42", 0.0),
        ("The answer is 42", "42", 0.0),
        ("42..", "42", 0.0),  # one final period
        ("", "42", 0.0),
        ("2, 7, 9", "2, 7, 9.", 1.0),
        ("1.5", "1.5", 1.0),
        ("042", "42", 0.0),
    ],
)
def test_exact_compares_the_last_line_word_for_word(text, gold, value):
    assert Exact()(FakeAttempt(text, answer=gold)) == value


@pytest.mark.parametrize("gold", [None, "", " \n", "."])
def test_a_gold_answer_that_cannot_be_read_is_invalid_and_never_a_zero(gold):
    attempt = FakeAttempt("42", task=dataclasses.replace(FakeTask("42"), answer=gold))
    assert isinstance(Exact()(attempt), Invalid)


# --- numbers ----------------------------------------------------------------------------------------------------------

KINDS = ("largest", "sum", "first_letter", "sort")


def test_a_question_comes_behind_the_system_prompt_and_one_worked_example():
    task = Numbers()[0]
    assert [m["role"] for m in task.messages] == ["system", "user", "assistant", "user"]
    assert [m["content"] for m in task.messages[:3]] == [SYSTEM, "Which number is the largest: 61, 58, 35?", "61"]
    assert len(Numbers(shots=3)[0].messages) == 8 and len(Numbers(shots=0)[0].messages) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_right(kind):
    taskset = Numbers(kind=kind)
    for row in range(50):
        question, answer = taskset[row].messages[-1]["content"], taskset[row].answer
        numbers = [int(word) for word in "".join(c if c.isdigit() else " " for c in question).split()]
        if kind == "largest":
            assert int(answer) == max(numbers) and len(set(numbers)) == 3
        elif kind == "sum":
            assert int(answer) == sum(numbers) and len(numbers) == 3
        elif kind == "sort":
            assert answer == ", ".join(map(str, sorted(numbers)))
        else:
            assert question.split('"')[1] in WORDS and answer == question.split('"')[1][0]


@pytest.mark.parametrize("kind", KINDS)
def test_no_question_is_in_both_splits_or_shown_as_an_example(kind):
    train, test = Numbers(kind=kind), Numbers(kind=kind, split="test", size=500, seed=3)
    trained = {train[row].messages[-1]["content"] for row in range(1000)}
    tested = {test[row].messages[-1]["content"] for row in range(500)}
    shown = {test[0].messages[1]["content"]}
    assert trained and tested and not tested & (trained | shown)
    assert all(split_of(question) == "test" for question in tested)


def test_a_row_is_the_same_every_time_and_another_seed_gives_others():
    assert Numbers()[7] == Numbers()[7]
    assert Numbers()[4095] == Numbers(size=10_000)[4095]
    others = Numbers(seed=1)
    assert sum(Numbers()[row].messages[-1] == others[row].messages[-1] for row in range(20)) < 3


def test_exact_gives_every_gold_answer_1():
    for kind in KINDS:
        task = Numbers(kind=kind)[5]
        assert Exact()(FakeAttempt(task.answer, task=task)) == 1.0


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="shots=-1"):
        Numbers(shots=-1)
    with pytest.raises(ConfigError, match="low=5 and high=4"):
        GuessTasks(low=5, high=4)


# --- single_turn, multi_turn, guess -----------------------------------------------------------------------------------


def played(workflow, engine, taskset, *, environment=None, rewards=None, tokens=32, group_size=2):
    async def play():
        run = run_of(group_size=group_size, response=8, max_calls=16)
        scheduler = scheduler_of(
            run, workflow, engine, environment=environment, rewards=rewards, tasksets={"d": taskset}
        )
        try:
            (one,) = await scheduler.play_all([(0, "d", 0)], max_attempt_tokens=tokens)
            return one.group.attempts
        finally:
            scheduler.scorer.close()

    return asyncio.run(play())


def test_single_turn_asks_once_and_leaves_the_score_to_the_rewards():
    task = Numbers()[0]
    right, wrong = played(
        SingleTurn(),
        Scripted(lambda r: task.answer if r.key.attempt == 0 else "no"),
        Numbers(),
        rewards=parts(exact=Exact()),
    )
    assert (right.score, wrong.score) == (Ok(1.0, {"exact": 1.0}), Ok(0.0, {"exact": 0.0}))
    assert right.messages == [*task.messages, {"role": "assistant", "content": task.answer}]


def guessing(*guesses):
    return Scripted(lambda request: guesses[request.key.call])


def test_multi_turn_plays_until_the_world_is_done():
    taskset = GuessTasks(low=4, high=4)
    attempt, _ = played(MultiTurn(), guessing("7", "2", "hm", "4"), taskset, environment=Guess())
    assert [m["content"] for m in attempt.messages[1:]] == [
        "7",
        "lower",
        "2",
        "higher",
        "hm",
        "That is no number.",
        "4",
    ]
    assert attempt.score == Ok(1.0, {"workflow": 1.0})
    assert attempt.info == {"turns": 4, "done": True}
    (one,) = attempt.experiences
    assert [call.reward for call in one.calls] == [0.0, 0.0, 0.0, 1.0]
    assert len({call.state for call in one.calls}) == 4 and all(call.state for call in one.calls)


def test_attempts_in_the_same_state_have_the_same_state_hash():
    a, b = played(
        MultiTurn(max_turns=2), guessing("7", "2"), GuessTasks(low=4, high=4), environment=Guess(max_delay_s=0.01)
    )
    assert [c.state for c in a.experiences[0].calls] == [c.state for c in b.experiences[0].calls]


def test_multi_turn_ends_after_max_turns_or_when_its_tokens_are_spent():
    taskset = GuessTasks(low=4, high=4)
    long, _ = played(MultiTurn(max_turns=3), guessing(*"7777777"), taskset, environment=Guess())
    assert long.info == {"turns": 3, "done": False} and long.score.value == 0.0
    short, _ = played(MultiTurn(), guessing(*"7777777"), taskset, environment=Guess(), tokens=3)
    assert short.info == {"turns": 2, "done": False} and short.num_actions == 3


def test_multi_turn_without_a_world_says_which_to_select():
    (attempt, _) = played(MultiTurn(), guessing("1"), GuessTasks())
    assert isinstance(attempt.score, Fault) and "environment=guess" in attempt.score.reason
    with pytest.raises(ConfigError, match="max_turns"):
        MultiTurn(max_turns=0)


def test_guess_refuses_a_task_without_a_secret():
    async def play():
        await Guess().open(FakeRun()).reset(FakeTask())

    with pytest.raises(DataError, match=r"task\.data\['secret'\]"):
        asyncio.run(play())


# --- shuffled ---------------------------------------------------------------------------------------------------------


def picks(n, sizes, weights=None, *, seed=0, start=0):
    return Shuffled().open(FakeRun(seed=seed)).pick(range(start, n), sizes, weights or dict.fromkeys(sizes, 1.0))


def test_every_row_comes_exactly_once_per_epoch_in_a_new_order():
    rows = [row for _, row in picks(30, {"a": 10})]
    epochs = [rows[i : i + 10] for i in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_draw_plays_the_same_row_whenever_it_is_asked_for():
    sizes, weights = {"a": 10, "b": 4}, {"a": 0.7, "b": 0.3}
    assert picks(50, sizes, weights)[37:] == picks(50, sizes, weights, start=37)


def test_tasksets_take_turns_by_weight():
    found = Counter(slot for slot, _ in picks(100, {"a": 10, "b": 4}, {"a": 0.7, "b": 0.3}))
    assert found == {"a": 70, "b": 30}
    rows = [row for slot, row in picks(40, {"a": 10, "b": 4}, {"a": 0.7, "b": 0.3}) if slot == "b"]
    assert sorted(rows[:4]) == sorted(rows[4:8]) == [0, 1, 2, 3]


def test_another_seed_is_another_order():
    assert picks(10, {"a": 10}, seed=0) != picks(10, {"a": 10}, seed=1)


@pytest.mark.parametrize("weights", [{"a": 0.0}, {"a": -1.0}])
def test_weights_that_pick_nothing_are_refused(weights):
    with pytest.raises(ConfigError, match="one must be positive"):
        picks(1, {"a": 10}, weights)


# --- dynamic_sampling -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ([1.0, 0.0, 0.0], True),
        ([1.0, 1.0, 1.0], False),
        ([0.0, 0.0], False),
        ([1.0], False),
        ([1.0, Fault("down"), Invalid("no gold")], False),  # what has no score is no 0
        ([1.0, 1.0 + 1e-9], False),
        ([Fault("down")], False),
    ],
)
def test_a_group_is_kept_if_its_scores_differ(rewards, kept):
    assert len(DynamicSampling()(fake_group(rewards))) == kept


def test_a_greedy_attempt_does_not_make_a_difference():
    group = fake_group([1.0, 1.0, 0.0], roles=["sample", "sample", "greedy"])
    assert DynamicSampling()(group) == []


def test_a_part_of_the_score_can_be_compared():
    group = fake_group([Ok(1.0, {"math": 1.0, "form": 0.0}), Ok(1.0, {"math": 0.5, "form": 0.0})])
    assert DynamicSampling(key="math")(group) == [group]
    assert DynamicSampling(key="form")(group) == []
    with pytest.raises(ConfigError, match=r"'maths' is no part of the score\. Parts: form, math"):
        DynamicSampling(key="maths")(group)
