"""Pairs from a group's own attempts: best and worst, or what people prefer."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from trinity_core.builtins.operators.ask_people import AskPeople, candidates, name_of
from trinity_core.builtins.operators.best_worst import BestWorst
from trinity_core.builtins.operators.dynamic_sampling import DynamicSampling
from trinity_core.errors import ConfigError, RunError
from trinity_core.protocols import Operator
from trinity_core.rollout import operate
from trinity_core.rollout.operate import Operators
from trinity_core.rollout.pool import Pool
from trinity_core.rollout.questions import read_question, waiting
from trinity_core.testing.fakes import FakeRun, fake_group
from trinity_core.types import Fault, Invalid, Ok

GIVEN = [
    fake_group([None], roles=["expert"]),
    fake_group([None, None], roles=["chosen", "rejected"], pairs=[(0, 1)]),
]

# --- best and worst -----------------------------------------------------------------------------------------------------


def test_the_best_and_the_worst_become_a_pair_and_the_others_leave():
    group = fake_group([0.5, 1.0, Fault("late"), 0.25, 0.75])
    (one,) = BestWorst()(group)
    assert [(a.role, a.index, a.value) for a in one.attempts] == [("chosen", 1, 1.0), ("rejected", 3, 0.25)]
    assert one.pairs == [(0, 1)] and one.id == group.id and one.version == 0
    np.testing.assert_array_equal(one.attempts[0].experiences[0].tokens_T, group.attempts[1].experiences[0].tokens_T)
    assert [a.role for a in group.attempts] == ["sample"] * 5, "the group that was played stays as it is"


def test_of_equal_scores_the_first_counts():
    (one,) = BestWorst()(fake_group([0.0, 1.0, 1.0, 0.0]))
    assert [a.index for a in one.attempts] == [1, 0]


@pytest.mark.parametrize(
    "rewards", [[1.0, 1.0], [0.1 + 0.2, 0.3], [1.0, Invalid("no gold")], [Invalid("a"), Fault("b")]]
)
def test_a_group_without_a_difference_makes_no_pair(rewards):
    """Also one of a single score, and .1 + .2 is .3 up to rounding."""
    assert BestWorst()(fake_group(rewards)) == []


def test_a_part_of_the_score_can_decide():
    group = fake_group([Ok(1.0, {"short": 0.0, "math": 1.0}), Ok(0.0, {"short": 1.0, "math": 0.0})])
    assert [a.index for a in BestWorst(key="short")(group)[0].attempts] == [1, 0]
    with pytest.raises(ConfigError, match=r"best_worst\.key: 'long' is no part of the score. Parts: math, short"):
        BestWorst(key="long")(group)
    with pytest.raises(ConfigError, match="tolerance"):
        BestWorst(tolerance=-1.0)


@pytest.mark.parametrize("operator", [BestWorst(), DynamicSampling()], ids=["best_worst", "dynamic_sampling"])
@pytest.mark.parametrize("group", GIVEN, ids=["expert", "pair"])
def test_what_was_given_and_not_sampled_stays(operator, group):
    assert operator(group) == [group]


# --- people ---------------------------------------------------------------------------------------------------------------

TWO = fake_group([Invalid("nobody scored it")] * 3, texts=["same", "same", "other"], draw=4)


def asking(group, tmp_path, answer=None, *, run=None, timeout_s=5.0, answers=()):
    """What the operator makes of ``group`` while somebody writes ``answer`` as soon as the question is there."""

    async def judge() -> None:
        while not (names := waiting(tmp_path)):
            await asyncio.sleep(0.01)
        for one in (*answers, answer):
            (tmp_path / f"{names[0]}.answer.json").write_text(one if isinstance(one, str) else json.dumps(one))
            await asyncio.sleep(0.3 if answers else 0)

    async def both() -> Any:
        live = AskPeople(path=str(tmp_path), timeout_s=timeout_s).open(run or FakeRun())
        person = asyncio.create_task(judge()) if answer is not None else None
        try:
            return await live(group)
        finally:
            if person is not None:
                person.cancel()

    return asyncio.run(both())


@pytest.mark.parametrize(("chosen", "order"), [(0, [0, 2]), (1, [2, 0])])
def test_what_people_prefer_is_chosen(chosen, order, tmp_path):
    (one,) = asking(TWO, tmp_path, {"chosen": chosen})
    assert [(a.role, a.index) for a in one.attempts] == [("chosen", order[0]), ("rejected", order[1])]
    assert one.pairs == [(0, 1)]


def test_a_question_shows_the_task_and_the_first_two_answers_that_differ(tmp_path):
    run = FakeRun()
    assert asking(TWO, tmp_path, {"skip": True}, run=run) == []
    question = read_question(tmp_path, name_of(TWO, ["same", "other"]))
    assert question is not None
    assert question["candidates"] == ["same", "other"] and question["attempts"] == [0, 2]
    assert question["task"] == [{"role": "user", "content": "say 0"}]
    assert (question["group"], question["draw"]) == (TWO.id, 4)
    assert "answer" not in question, "a gold answer would tell people what to prefer"
    assert run.logged == {"ask_people/skipped": [1.0], "ask_people/dropped": [1.0]}


def test_nobody_is_asked_twice_about_the_same_draw(tmp_path):
    """A resumed run samples it again, under the same hash; the run's id does not matter."""
    asking(TWO, tmp_path, {"chosen": 1})
    again = fake_group([Invalid("x")] * 3, texts=["same", "same", "other"], draw=4, run="another")
    (one,) = asking(again, tmp_path)
    assert [a.index for a in one.attempts] == [2, 0]
    assert waiting(tmp_path) == [] and len(list(tmp_path.glob("*.question.json"))) == 1


@pytest.mark.parametrize("other", [{"draw": 5}, {"texts": ["same", "same", "third"]}])
def test_another_draw_or_another_text_is_another_question(other, tmp_path):
    asking(TWO, tmp_path, {"chosen": 1})
    group = fake_group([Invalid("x")] * 3, **({"texts": ["same", "same", "other"], "draw": 4} | other))
    assert asking(group, tmp_path, timeout_s=0.3) == []


def test_when_nobody_answers_in_time_the_group_is_dropped_and_the_question_withdrawn(tmp_path, caplog):
    run = FakeRun()
    with caplog.at_level(logging.WARNING, logger="trinity"):
        assert asking(TWO, tmp_path, run=run, timeout_s=0.3) == []
    assert list(tmp_path.iterdir()) == [] and run.logged == {"ask_people/dropped": [1.0]}
    assert "nobody answered" in caplog.text and "trinity judge" in caplog.text


@pytest.mark.parametrize("nonsense", ["{", "3", {"chosen": 2}, {"chosen": True}, {"skip": 1}, {}])
def test_what_is_no_answer_is_said_once_and_waited_for(nonsense, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="trinity"):
        (one,) = asking(TWO, tmp_path, {"chosen": 1}, answers=[nonsense, nonsense])
    assert one.attempts[0].index == 2
    assert caplog.text.count("It counts as no answer") == 1


@pytest.mark.parametrize("texts", [["same", "same"], ["alone"]])
def test_a_group_of_one_text_asks_nobody(texts, tmp_path):
    assert asking(fake_group([0.0] * len(texts), texts=texts), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_what_faulted_is_no_candidate():
    group = fake_group([Fault("late"), 1.0, 0.0], texts=["a", "b", "c"])
    assert candidates(group) == (1, 2)


@pytest.mark.parametrize("group", GIVEN, ids=["expert", "pair"])
def test_people_are_not_asked_about_what_was_given(group, tmp_path):
    assert asking(group, tmp_path) == [group] and list(tmp_path.iterdir()) == []


def test_questions_lie_in_the_run_folder_unless_a_path_says_otherwise(tmp_path):
    assert AskPeople().open(FakeRun(dir=tmp_path)).folder == tmp_path / "questions"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"ask_people\.path"):
        AskPeople(path=str(tmp_path / "file")).open(FakeRun())
    with pytest.raises(ConfigError, match="timeout_s"):
        AskPeople(timeout_s=0.0)


# --- limits ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Waits(Operator):
    """Waits for what never comes."""

    timeout_s: float = 0.2
    seen: list[str] = field(default_factory=list)

    async def __call__(self, group):
        self.seen.append(group.id)
        await asyncio.Event().wait()


def test_an_operator_that_waits_beyond_its_limit_ends_the_run(monkeypatch):
    monkeypatch.setattr(operate, "GRACE_S", 0.1)
    waits, pool = Waits(), Pool(1)
    operators = Operators({"mine": waits}, {"mine": waits}, pool)
    try:
        with pytest.raises(RunError, match=r"operators\.mine: group run/.*: it was still waiting after 0\.3 s"):
            asyncio.run(operators.apply(TWO))
    finally:
        pool.close()
    assert waits.seen == [TWO.id]


def test_people_have_their_time_before_the_kernel_looks(monkeypatch, tmp_path):
    """The operator's own limit comes first, so the group is dropped and the run goes on."""
    monkeypatch.setattr(operate, "GRACE_S", 2.0)
    config, pool = AskPeople(path=str(tmp_path), timeout_s=0.3), Pool(1)
    operators = Operators({"people": config}, {"people": config.open(FakeRun())}, pool)
    try:
        assert asyncio.run(operators.apply(TWO)) == ([], "people")
    finally:
        pool.close()
