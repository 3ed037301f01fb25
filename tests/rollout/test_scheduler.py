"""Playing draws: bounded, deadlined, retried, accounted for."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from trinity_core.errors import DataError, RunError
from trinity_core.protocols import Environment, Workflow
from trinity_core.rollout.scheduler import _ended
from trinity_core.rollout.seeds import group_id, task_id
from trinity_core.testing.fakes import Digits
from trinity_core.testing.scripted import Scripted, run_of, scheduler_of
from trinity_core.types import Fault, Invalid, Ok, Result, Step


@dataclass(frozen=True)
class Does(Workflow):
    """Whatever the test says, with the number of the attempt and of the try."""

    what: Any = None
    seen: list[Any] = field(default_factory=list)

    async def run(self, task, chat):
        self.seen.append((chat.key.attempt, chat.key.attempt_try))
        return await self.what(task, chat)


def playing(what, *, engine=None, openings=((0, "d", 0),), rewards=None, environment=None, options=None, **explorer):
    """(groups, scheduler, tries) of a play of ``what``."""

    async def play():
        workflow = Does(what)
        scheduler = scheduler_of(
            run_of(**explorer), workflow, engine or Scripted(), environment=environment, rewards=rewards
        )
        try:
            return await scheduler.play_all(list(openings), **(options or {})), scheduler, workflow.seen
        finally:
            scheduler.scorer.close()

    return asyncio.run(play())


async def fine(task, chat):
    await chat(task.messages)
    return Result(reward=float(chat.key.attempt))


def test_every_attempt_of_every_draw_is_played_and_scored():
    played, scheduler, _ = playing(fine, openings=[(5, "d", 1), (6, "d", 2)], max_concurrent=3)
    assert [(p.group.draw, p.group.row, p.reason) for p in played] == [(5, 1, None), (6, 2, None)]
    assert [a.score for a in played[0].group.attempts] == [Ok(float(i), {"workflow": float(i)}) for i in range(4)]
    assert [a.index for a in played[1].group.attempts] == [0, 1, 2, 3]
    assert played[0].group.id == group_id("run", "d", 1, 5)
    assert {a.task.id for a in played[0].group.attempts} == {task_id("d", 1)}
    counters = scheduler.counters
    assert (counters.attempts, counters.calls, counters.groups, counters.faults) == (8, 8, 2, 0)
    assert counters.tokens == sum(a.num_actions for p in played for a in p.group.attempts)


def test_under_lockstep_groups_come_in_the_order_of_the_openings():
    async def slow_first(task, chat):
        await asyncio.sleep(0.05 if chat.key.draw == 0 else 0.0)
        return await fine(task, chat)

    async def order():
        scheduler = scheduler_of(run_of(), Does(slow_first), Scripted())
        async with contextlib.aclosing(scheduler.play([(d, "d", d) for d in range(3)])) as played:
            found = [one.group.draw async for some in played for one in some]
        scheduler.scorer.close()
        return found

    assert asyncio.run(order()) == [0, 1, 2]


def test_no_more_than_max_concurrent_attempts_run_at_once():
    now, most = 0, 0

    async def counted(task, chat):
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            return await fine(task, chat)
        finally:
            now -= 1

    playing(counted, openings=[(d, "d", d) for d in range(4)], max_concurrent=3)
    assert most == 3


def test_a_fault_is_played_again_with_another_seed_and_its_siblings_stay():
    async def flaky(task, chat):
        await chat(task.messages)
        if chat.key.attempt == 2 and chat.key.attempt_try == 0:
            raise OSError("the tool is down")
        return Result(reward=1.0)

    engine = Scripted()
    played, scheduler, tries = playing(flaky, engine=engine, retries=1)
    assert sorted(tries) == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)]
    assert all(isinstance(a.score, Ok) for a in played[0].group.attempts)
    assert (scheduler.counters.retries, scheduler.counters.faults) == (1, 0)
    seeds = {request.seed for wave in engine.waves for request in wave if request.key.attempt == 2}
    assert len(seeds) == 2


def test_a_fault_that_stays_is_a_fault_and_never_a_zero():
    async def broken(task, chat):
        await chat(task.messages)
        if chat.key.attempt == 1:
            raise OSError("the tool is down")
        return Result(reward=1.0)

    played, scheduler, _ = playing(broken, retries=2)
    attempt = played[0].group.attempts[1]
    assert isinstance(attempt.score, Fault) and attempt.score.retryable
    assert attempt.score.reason.startswith("Does: OSError: the tool is down (test_scheduler.py:")
    assert attempt.experiences == []  # what a broken attempt sampled is never trained
    assert (scheduler.counters.retries, scheduler.counters.faults) == (2, 1)
    assert played[0].reason is None  # three of four are enough


def test_a_group_with_too_few_scored_attempts_says_why_it_cannot_be_used():
    async def mostly_broken(task, chat):
        await chat(task.messages)
        if chat.key.attempt:
            raise OSError("the tool is down")
        return Result(reward=1.0)

    played, _, _ = playing(mostly_broken, retries=0, min_attempts=2)
    assert played[0].reason is not None and played[0].reason.startswith(
        "1 of 4 attempts have a score, 2 are needed; the first without: Does: OSError: the tool is down (test_scheduler.py:"
    )


def test_a_group_of_one_needs_one():
    played, _, _ = playing(fine, group_size=1, min_attempts=2)
    assert played[0].reason is None


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "Does.run returned nothing: return Result("),
        (1.0, "Does.run returned a float"),
        (Result(info={"x": object()}), "Result.info must be plain data"),
        (Result(text=3), "Result.text is a int"),  # type: ignore[arg-type]
        (Result(reward=float("nan")), "a score is a finite number"),
        (Result(reward="good"), "a score is a number"),  # type: ignore[arg-type]
    ],
)
def test_a_workflow_that_returns_nothing_usable_faults_at_once(returned, said):
    async def odd(task, chat):
        await chat(task.messages)
        return returned

    played, scheduler, _ = playing(odd)
    assert all(said in a.score.reason for a in played[0].group.attempts)
    assert scheduler.counters.retries == 0
    assert "0 of 4" in (played[0].reason or "")


def test_a_workflows_own_verdict_can_be_that_there_is_no_score():
    async def unreadable(task, chat):
        await chat(task.messages)
        return Result(reward=Invalid("no gold"))

    played, scheduler, _ = playing(unreadable)
    assert all(a.score == Invalid("no gold") for a in played[0].group.attempts)
    assert (scheduler.counters.invalid, scheduler.counters.retries) == (4, 0)


def test_on_arrival_an_attempt_has_a_wall_clock_limit():
    async def hangs(task, chat):
        await chat(task.messages)
        if chat.key.attempt == 3:
            await asyncio.sleep(60)
        return Result(reward=1.0)

    played, _, _ = playing(hangs, order="arrival", attempt_timeout_s=0.1, retries=0)
    assert "explorer.attempt_timeout_s=0.1" in played[0].group.attempts[3].score.reason
    assert [isinstance(a.score, Ok) for a in played[0].group.attempts] == [True, True, True, False]


def test_a_tools_own_timeout_is_not_mistaken_for_the_attempts():
    async def late_tool(task, chat):
        raise TimeoutError("the tool took too long")

    played, _, _ = playing(late_tool, order="arrival", retries=0)
    assert played[0].group.attempts[0].score == Fault("TimeoutError: the tool took too long")


def test_under_lockstep_limits_count_calls():
    async def endless(task, chat):
        while True:
            await chat(task.messages)

    played, scheduler, _ = playing(endless, max_calls=5, options={"max_attempt_tokens": 1000})
    assert all("explorer.max_calls=5" in a.score.reason for a in played[0].group.attempts)
    assert (scheduler.counters.calls, scheduler.counters.retries) == (20, 0)


def test_an_attempt_whose_tokens_are_spent_is_scored_as_it_stands():
    async def endless(task, chat):
        while True:
            await chat(task.messages)

    from trinity_core.builtins.rewards.exact import Exact
    from trinity_core.testing.scripted import parts

    played, _, _ = playing(endless, engine=Scripted(lambda r: "0"), rewards=parts(exact=Exact()), total=6)
    for attempt in played[0].group.attempts:
        assert attempt.score == Ok(1.0, {"exact": 1.0})
        assert attempt.num_actions == 6
        assert "max_attempt_tokens=6" in attempt.info["ended"]


def test_a_greedy_attempt_is_an_extra_role_at_temperature_0():
    engine = Scripted()
    played, _, _ = playing(fine, engine=engine, options={"extra_roles": ("greedy",)})
    assert [a.role for a in played[0].group.attempts] == ["sample"] * 4 + ["greedy"]
    assert [r.sampling.temperature for r in engine.waves[0]] == [1.0] * 4 + [0.0]


def test_a_greedy_attempt_without_a_score_excludes_the_group():
    async def greedy_breaks(task, chat):
        await chat(task.messages)
        if chat.sampling.greedy:
            raise OSError("down")
        return Result(reward=1.0)

    played, _, _ = playing(greedy_breaks, options={"extra_roles": ("greedy",)})
    assert played[0].reason is not None and "down" in played[0].reason


@dataclass(frozen=True)
class Worlds(Environment):
    """Remembers what was opened and closed."""

    opened: list[int] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    fails: str = ""

    def open(self, run):
        world = World(len(self.opened), self)
        self.opened.append(world.number)
        if self.fails == "open":
            raise OSError("no port left")
        return world


class World(Environment):
    def __init__(self, number, config):
        self.number, self.config = number, config

    async def reset(self, task):
        return Step()

    async def close(self):
        self.config.closed.append(self.number)
        if self.config.fails == "close":
            raise OSError("still busy")


def test_each_attempt_has_a_world_of_its_own_and_it_is_closed_also_after_a_fault():
    async def plays(task, chat):
        await chat.environment.reset(task)
        await chat(task.messages)
        if chat.key.attempt == 0:
            raise OSError("down")
        return Result(reward=1.0)

    worlds = Worlds()
    playing(plays, environment=worlds, retries=1)
    assert sorted(worlds.closed) == worlds.opened == [0, 1, 2, 3, 4]


def test_a_world_that_does_not_open_is_a_fault():
    played, _, _ = playing(fine, environment=Worlds(fails="open"), retries=0)
    fault = played[0].group.attempts[0].score
    assert isinstance(fault, Fault) and fault.reason.startswith("Does: OSError: no port left (test_scheduler.py:")


def test_a_world_that_does_not_close_costs_a_warning_and_no_attempt():
    async def play():
        told: list[str] = []
        scheduler = scheduler_of(
            run_of(group_size=1), Does(fine), Scripted(), environment=Worlds(fails="close"), on_warning=told.append
        )
        (one,) = await scheduler.play_all([(0, "d", 0)])
        scheduler.scorer.close()
        return one, told

    one, told = asyncio.run(play())
    assert one.reason is None
    assert told == ["environment Worlds: close() failed: OSError: still busy"]


def test_cancelling_a_play_cancels_its_attempts_and_closes_their_worlds():
    async def play():
        worlds, reached = Worlds(), asyncio.Event()

        async def waits(task, chat):
            reached.set()
            await asyncio.Event().wait()

        scheduler = scheduler_of(run_of(), Does(waits), Scripted(), environment=worlds)
        task = asyncio.create_task(scheduler.play_all([(0, "d", 0)]))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        scheduler.scorer.close()
        left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        return worlds, left

    worlds, left = asyncio.run(play())
    assert sorted(worlds.closed) == worlds.opened == [0, 1, 2, 3]
    assert left == []


def test_leaving_a_play_early_ends_it():
    async def play():
        scheduler = scheduler_of(run_of(), Does(fine), Scripted())
        async with contextlib.aclosing(scheduler.play([(d, "d", d) for d in range(3)])) as played:
            async for _ in played:
                break
        scheduler.scorer.close()
        return [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]

    assert asyncio.run(play()) == []


def test_tokens_are_told_as_they_are_sampled():
    async def play():
        told: list[int] = []
        scheduler = scheduler_of(run_of(), Does(fine), Scripted(), on_tokens=told.append)
        await scheduler.play_all([(0, "d", 0)])
        scheduler.scorer.close()
        return told, scheduler.counters.tokens

    told, total = asyncio.run(play())
    assert told == [2, 2, 2, 2] and total == 8  # a digit and the end, four times


def test_an_empty_taskset_is_refused_at_the_start_by_its_path():
    with pytest.raises(DataError, match=r"tasksets\.d: the taskset has no task"):
        scheduler_of(run_of(), Does(fine), Scripted(), tasksets={"d": Digits(size=0)})


def test_a_row_that_cannot_be_read_and_a_slot_that_is_not_there_are_named():
    with pytest.raises(DataError, match=r"tasksets\.d\[99\]: IndexError"):
        playing(fine, openings=[(0, "d", 99)])
    with pytest.raises(RunError, match=r"tasksets\.x: no such slot\. Slots: d"):
        playing(fine, openings=[(0, "x", 0)])


def test_branches_are_counted():
    async def forks(task, chat):
        await chat(task.messages)
        await chat([{"role": "user", "content": "something else"}])
        return Result(reward=1.0)

    played, scheduler, _ = playing(forks, options={"max_attempt_tokens": 99})
    assert scheduler.counters.branches == 4
    assert played[0].group.attempts[0].info == {"branches": 1}


def test_a_workflow_that_exits_or_whose_tool_was_cancelled_is_a_fault_and_the_play_goes_on():
    async def odd(task, chat):
        await chat(task.messages)
        if chat.key.attempt == 0:
            raise SystemExit(3)
        if chat.key.attempt == 1:
            tool = asyncio.ensure_future(asyncio.sleep(60))
            tool.cancel()
            await tool
        return Result(reward=1.0)

    played, _, _ = playing(odd, retries=0)
    said = [a.score.reason if isinstance(a.score, Fault) else "" for a in played[0].group.attempts]
    assert said[0].startswith("Does: SystemExit: 3 (test_scheduler.py:")
    assert said[1].startswith("Does: what it waited for was cancelled")
    assert said[2:] == ["", ""]


def test_a_lockstep_wave_that_waits_long_says_for_whom():
    async def play():
        told: list[str] = []

        async def stuck(task, chat):
            if chat.key.attempt == 2:
                await asyncio.sleep(0.2)
            return await fine(task, chat)

        scheduler = scheduler_of(run_of(attempt_timeout_s=0.05), Does(stuck), Scripted(), on_warning=told.append)
        (one,) = await scheduler.play_all([(0, "d", 0)])
        scheduler.scorer.close()
        return one, told

    one, (told,) = asyncio.run(play())
    assert one.reason is None
    assert "waited 0.05 s for 1 of 4 attempts" in told and "attempt=2" in told


def test_a_workflow_that_never_played_anything_ends_the_run_with_its_reason():
    async def nothing(task, chat):
        await chat(task.messages)

    with pytest.raises(RunError, match=r"workflow: none of the first 16 attempts could be played; .*returned nothing"):
        playing(nothing, openings=[(d, "d", d) for d in range(5)])


def test_an_evaluation_is_counted_apart_from_play():
    async def play():
        told: list[int] = []
        scheduler = scheduler_of(run_of(), Does(fine), Scripted(), on_tokens=told.append)
        await scheduler.play_all([(0, "d", 0)], stream="eval:heldout")
        scheduler.scorer.close()
        return told, scheduler.counters, scheduler.apart

    told, counters, apart = asyncio.run(play())
    assert told == [] and (counters.attempts, counters.tokens, counters.groups) == (0, 0, 0)
    assert apart.attempts == 4 and apart.groups == 1 and apart.tokens > 0


def test_what_went_wrong_is_raised_after_the_draws_that_ended_before_it():
    async def play():
        ended: asyncio.Queue = asyncio.Queue()
        for item in ("draw 0", "draw 1", DataError("the cause")):
            ended.put_nowait(item)
        assert await _ended(ended) == ["draw 0", "draw 1"]
        with pytest.raises(DataError, match="the cause"):
            await _ended(ended)

    asyncio.run(play())


def test_an_engine_that_fails_is_named_whatever_ended_before():
    async def play():
        scheduler = scheduler_of(run_of(), Does(fine), Scripted())

        async def broken(group):
            if group.draw == 1:
                raise DataError("the cause")

        scheduler.scorer.score = broken
        found = []
        try:
            async with contextlib.aclosing(scheduler.play([(0, "d", 0), (1, "d", 1)])) as played:
                async for some in played:
                    found += [one.group.draw for one in some]
                    await asyncio.sleep(0.1)  # meanwhile the other draw breaks and the play ends
        finally:
            scheduler.scorer.close()

    with pytest.raises(DataError, match="the cause"):
        asyncio.run(play())
