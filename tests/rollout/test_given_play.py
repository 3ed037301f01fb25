"""Tasks that bring their attempts along are recorded: no engine, no reward, no workflow; an evaluation plays them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest

from trinity_core.builtins.workflows.single_turn import SingleTurn
from trinity_core.config.schema import Part
from trinity_core.errors import DataError
from trinity_core.protocols import Operator, Reward, Taskset
from trinity_core.testing.fakes import Digits, FakeTask
from trinity_core.testing.scripted import Scripted, parts, run_of, scheduler_of
from trinity_core.types import Invalid, Ok, Task


@dataclass(frozen=True)
class Counted(Reward):
    """Writes down what it is asked."""

    async def __call__(self, attempt):
        asked.append(attempt.role)
        return 1.0


@dataclass(frozen=True)
class Texts(Taskset):
    """One text, no question."""

    def __len__(self):
        return 1

    def __getitem__(self, row):
        return Task("t", (), given={"expert": "abc"})


@dataclass(frozen=True)
class Chooses(Operator):
    makes_pairs = True


asked: list[str] = []
GIVEN = {"d": Digits(demonstrations=True, preferences=True)}


def played(openings, tasksets, *, rewards=True, operators=(), options=None, **explorer):
    """(what was played, the engine)"""

    async def play():
        engine = Scripted(lambda request: "7")
        run = run_of(**explorer)
        slots = {f"operators.{n}": Part("operator", str(n), f"operators.{n}", one) for n, one in enumerate(operators)}
        run.config = replace(run.config, parts=slots)
        judges = parts(counted=Counted()) if rewards else {}
        scheduler = scheduler_of(run, SingleTurn(), engine, rewards=judges, tasksets=tasksets)
        try:
            return await scheduler.play_all(list(openings), **(options or {})), engine
        finally:
            scheduler.scorer.close()

    asked.clear()
    return asyncio.run(play())


def test_given_data_costs_no_engine_call_and_no_reward_call():
    (one, two), engine = played([(0, "d", 3), (1, "d", 4)], GIVEN, group_size=8)
    assert engine.waves == [] and asked == []
    assert [(a.role, a.text, a.score) for a in one.group.attempts] == [
        ("expert", "3", None),
        ("chosen", "3", None),
        ("rejected", "6", None),
    ]
    assert one.group.pairs == two.group.pairs == [(1, 2)]
    assert one.reason is None and one.group.version is None


@pytest.mark.parametrize("order", ["lockstep", "arrival"])
def test_given_and_played_draws_mix(order):
    openings = [(0, "d", 1), (1, "p", 2), (2, "d", 3), (3, "p", 4)]
    found, engine = played(openings, GIVEN | {"p": Digits()}, group_size=2, order=order)
    assert [(one.group.draw, len(one.group.attempts), one.reason) for one in found] == [
        (0, 3, None),
        (1, 2, None),
        (2, 3, None),
        (3, 2, None),
    ]
    assert {request.key.draw for wave in engine.waves for request in wave} == {1, 3}
    assert asked == ["sample"] * 4


def test_one_greedy_attempt_more_is_not_played_for_what_is_given():
    (one,), engine = played([(0, "d", 1)], GIVEN, options={"extra_roles": ("greedy",)})
    assert engine.waves == [] and "greedy" not in {a.role for a in one.group.attempts}


def test_an_evaluation_plays_what_a_run_would_record():
    (one,), engine = played([(0, "d", 7)], GIVEN, options={"stream": "eval:d", "num_attempts": 2, "min_attempts": 0})
    assert [(a.role, a.text) for a in one.group.attempts] == [("sample", "7")] * 2
    assert one.group.pairs == [] and one.group.attempts[0].score == Ok(1.0, {"counted": 1.0})
    assert {request.key.stream for wave in engine.waves for request in wave} == {"eval:d"}


def test_an_evaluation_cannot_ask_a_text_that_asks_nothing():
    with pytest.raises(DataError, match=r"eval\.tasksets\.d\[0\]: a text to be learned asks nothing"):
        played([(0, "d", 0)], {"d": Texts()}, options={"stream": "eval:d"})


def test_what_is_given_wrongly_names_its_row():
    @dataclass(frozen=True)
    class Half(Texts):
        def __getitem__(self, row):
            return replace(FakeTask("4", "say 4"), given={"chosen": [{"role": "assistant", "content": "4"}]})

    with pytest.raises(DataError, match=r"tasksets\.d\[0\]: given: 1 chosen and 0 rejected"):
        played([(0, "d", 0)], {"d": Half()})


def test_attempts_that_nothing_scores_are_of_use_where_people_compare_them():
    """A run with neither rewards nor an operator that makes pairs has no use for them."""
    for operators, reason in (((Chooses(),), False), ((), True)):
        (one,), _ = played([(0, "p", 1)], {"p": Digits()}, rewards=False, operators=operators)
        assert all(isinstance(a.score, Invalid) for a in one.group.attempts)
        assert (one.reason is not None) == reason
