"""Limits hold where they are promised."""

from __future__ import annotations

import asyncio

import pytest

from trinity_core.builtins.environments.guess import Guess
from trinity_core.builtins.tasksets.guess import GuessTasks
from trinity_core.builtins.workflows.multi_turn import MultiTurn
from trinity_core.testing.scripted import Scripted, run_of, scheduler_of


@pytest.mark.parametrize("limit", [1, 7, 20])
def test_no_attempt_has_more_action_tokens_than_it_may(limit):
    """CFG-02: ``sampling.max_attempt_tokens`` counts all turns of an attempt, and no attempt passes it."""

    async def play():
        engine = Scripted(lambda request: "I would say 777")
        run = run_of(group_size=3, response=10, total=limit)
        scheduler = scheduler_of(run, MultiTurn(max_turns=9), engine, environment=Guess(), tasksets={"d": GuessTasks()})
        (one,) = await scheduler.play_all([(0, "d", 0)])
        scheduler.scorer.close()
        return [attempt.num_actions for attempt in one.group.attempts]

    assert asyncio.run(play()) == [limit] * 3
