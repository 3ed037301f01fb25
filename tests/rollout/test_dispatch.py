"""Waves and arrivals."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest

from trinity_core.protocols import Workflow
from trinity_core.rollout.chat import Chat
from trinity_core.rollout.dispatch import EngineFailed
from trinity_core.testing.scripted import Scripted, run_of, scheduler_of
from trinity_core.types import Fault, Key, Request, Result, Task


@dataclass(frozen=True)
class Wandering(Workflow):
    """A few calls, each after a random sleep; how many is up to the replies."""

    delay_s: float = 0.004

    async def run(self, task: Task, chat: Chat) -> Result:
        messages = list(task.messages)
        for _ in range(4):
            await asyncio.sleep(random.uniform(0, self.delay_s))  # the clock's, not the seed's
            reply = await chat(messages)
            messages += [reply.message, {"role": "user", "content": "more"}]
            if int(reply.text) > 6:
                break
        await asyncio.sleep(random.uniform(0, self.delay_s))
        return Result()


async def waves_of(delay_s: float, *, concurrent: int = 5, wave: int = 3) -> tuple[list[list[Key]], list[list[int]]]:
    run = run_of(group_size=4, max_concurrent=concurrent, wave=wave, max_calls=9, min_attempts=1, retries=0)
    scheduler = scheduler_of(run, Wandering(delay_s), Scripted(), rewards={})
    waves: list[list[Key]] = []
    played = await scheduler.play_all([(d, "d", d) for d in range(4)], max_attempt_tokens=64, on_wave=waves.append)
    tokens = [e.tokens_T.tolist() for p in played for a in p.group.attempts for e in a.experiences]
    scheduler.scorer.close()
    return waves, tokens


def test_waves_do_not_depend_on_how_long_anything_takes():
    first, tokens = asyncio.run(waves_of(0.004))
    again, same = asyncio.run(waves_of(0.0))
    third, too = asyncio.run(waves_of(0.008))
    assert first == again == third
    assert tokens == same == too
    assert sum(map(len, first)) > 16  # more calls than attempts: the workflows really wander


def test_a_wave_is_sorted_by_key_and_cut_into_fixed_sizes():
    waves, _ = asyncio.run(waves_of(0.002))
    assert all(wave == sorted(wave) for wave in waves)
    assert [len(wave) for wave in waves[:2]] == [3, 2]  # five places, cut at three


def test_a_freed_place_is_filled_before_the_wave_leaves():
    waves, _ = asyncio.run(waves_of(0.002, concurrent=5, wave=64))
    # 16 attempts in five places: while attempts are left to begin, every wave holds a request of each place
    begun = 0
    for wave in waves:
        if begun < 16:
            assert len(wave) == 5
        begun += sum(key.call == 0 for key in wave)
    assert begun == 16


def test_seeds_do_not_depend_on_the_runs_id():
    async def seeds(id: str) -> list[int]:
        engine = Scripted()
        scheduler = scheduler_of(run_of(id=id, min_attempts=1), Wandering(0.0), engine)
        await scheduler.play_all([(0, "d", 0)], max_attempt_tokens=64)
        scheduler.scorer.close()
        return [request.seed for wave in engine.waves for request in wave]

    assert asyncio.run(seeds("a")) == asyncio.run(seeds("b"))


def test_evaluation_never_shares_a_wave_with_play():
    async def both() -> list[list[Request]]:
        engine = Scripted()
        scheduler = scheduler_of(run_of(min_attempts=1), Wandering(0.002), engine)
        await asyncio.gather(
            scheduler.play_all([(0, "d", 0), (1, "d", 1)], max_attempt_tokens=64),
            scheduler.play_all([(0, "d", 0), (0, "d", 1)], stream="eval:d", num_attempts=2, max_attempt_tokens=64),
        )
        scheduler.scorer.close()
        return engine.waves

    waves = asyncio.run(both())
    assert {len({request.key.stream for request in wave}) for wave in waves} == {1}
    seeds = [request.seed for wave in waves for request in wave]
    assert len(set(seeds)) == len(seeds)


def test_several_calls_at_once_of_one_attempt_share_a_wave():
    class Twice(Workflow):
        async def run(self, task, chat):
            await asyncio.gather(chat(task.messages), chat(task.messages))
            return Result()

    async def sizes() -> list[int]:
        engine = Scripted()
        run = run_of(group_size=3, min_attempts=0)
        scheduler = scheduler_of(run, Twice(), engine)
        # each call may take max_response: together they never promise more than the attempt has
        limit = 2 * run.config.sampling.max_response
        await scheduler.play_all([(0, "d", 0)], max_attempt_tokens=limit)
        scheduler.scorer.close()
        assert {request.sampling.max_tokens for wave in engine.waves for request in wave} == {limit // 2}
        return [len(wave) for wave in engine.waves]

    assert asyncio.run(sizes()) == [6]


def test_an_attempt_goes_on_as_soon_as_its_own_answer_is_there():
    """And waits for the whole wave before its next one: who shares a wave does not depend on who ended first."""
    gone_on: list[int] = []

    class Early(Scripted):
        async def stream_wave(self, requests):
            completions = await self.generate_wave(requests)
            for place in reversed(range(len(requests))):  # the last one ends first
                yield place, completions[place]
                await asyncio.sleep(0.005)
                assert gone_on[-1] == requests[place].key.attempt

    class Two(Workflow):
        async def run(self, task, chat):
            for _ in range(2):
                await chat(task.messages)
                gone_on.append(chat.key.attempt)
            return Result(reward=1.0)

    async def waves() -> list[list[int]]:
        engine = Early()
        scheduler = scheduler_of(run_of(group_size=3), Two(), engine)
        (one,) = await scheduler.play_all([(0, "d", 0)], max_attempt_tokens=64)
        scheduler.scorer.close()
        assert one.reason is None
        return [[request.key.attempt for request in wave] for wave in engine.waves]

    assert asyncio.run(waves()) == [[0, 1, 2], [0, 1, 2]]
    assert gone_on == [2, 1, 0, 2, 1, 0]


def test_several_calls_of_one_attempt_are_answered_together_in_their_order():
    """Whichever ends first: what the attempt does next, and the numbers and seeds of its next calls, follow from the order."""
    answered: list[tuple[int, int]] = []

    class Backwards(Scripted):
        async def stream_wave(self, requests):
            completions = await self.generate_wave(requests)
            for place in reversed(range(len(requests))):
                yield place, completions[place]
                await asyncio.sleep(0.005)
            assert not answered

    class Twice(Workflow):
        async def run(self, task, chat):
            async def one(number):
                await chat(task.messages)
                answered.append((chat.key.attempt, number))

            await asyncio.gather(one(0), one(1))
            return Result(reward=1.0)

    async def play() -> None:
        run = run_of(group_size=2)
        scheduler = scheduler_of(run, Twice(), Backwards())
        await scheduler.play_all([(0, "d", 0)], max_attempt_tokens=2 * run.config.sampling.max_response)
        scheduler.scorer.close()

    asyncio.run(play())
    assert answered == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([0], "the engine returned 1 completions for a wave of 4"),
        ([0, 0, 1, 2], "the engine answered request 0 of a wave of 4, which does not wait"),
        ([0, 1, 2, 3, 4], "the engine answered request 4 of a wave of 4, which does not wait"),
    ],
    ids=["too few", "one twice", "one too many"],
)
def test_an_engine_that_answers_otherwise_than_asked_ends_the_play(places, said):
    class Careless(Scripted):
        async def stream_wave(self, requests):
            completions = await self.generate_wave(requests)
            for place in places:
                yield place, completions[min(place, 3)]

    async def play() -> None:
        scheduler = scheduler_of(run_of(), Wandering(0.0), Careless())
        try:
            await scheduler.play_all([(0, "d", 0)])
        finally:
            scheduler.scorer.close()

    with pytest.raises(EngineFailed, match=said):
        asyncio.run(play())


def test_a_wave_with_too_few_completions_is_handed_to_nobody():
    """Which requests they belong to cannot be told."""

    class Short(Scripted):
        async def generate_wave(self, requests):
            return (await super().generate_wave(requests))[1:]

    async def play():
        scheduler = scheduler_of(run_of(order="arrival"), Wandering(0.0), Short())
        (one,) = await scheduler.play_all([(0, "d", 0)])
        scheduler.scorer.close()
        return one

    attempts = asyncio.run(play()).group.attempts
    assert all(isinstance(a.score, Fault) and "completions for a wave of" in a.score.reason for a in attempts)


class Broken(Scripted):
    async def generate_wave(self, requests):
        raise ValueError("no memory left")


def test_an_engine_that_raises_under_lockstep_ends_the_play():
    async def play() -> None:
        scheduler = scheduler_of(run_of(), Wandering(0.0), Broken())
        try:
            await scheduler.play_all([(0, "d", 0)])
        finally:
            scheduler.scorer.close()

    with pytest.raises(EngineFailed, match="Broken: ValueError: no memory left"):
        asyncio.run(play())


def test_an_engine_that_raises_on_arrival_is_a_fault_of_the_attempt():
    async def play():
        scheduler = scheduler_of(run_of(order="arrival"), Wandering(0.0), Broken())
        (one,) = await scheduler.play_all([(0, "d", 0)])
        scheduler.scorer.close()
        return one, scheduler.counters

    one, counters = asyncio.run(play())
    assert all(isinstance(a.score, Fault) and "no memory left" in a.score.reason for a in one.group.attempts)
    assert one.reason is not None and "0 of 4" in one.reason
    assert counters.retries == 4


def test_arrivals_are_batched_while_the_engine_is_busy_and_nobody_is_waited_for():
    class Slow(Scripted):
        async def generate_wave(self, requests):
            await asyncio.sleep(0.01)
            return await super().generate_wave(requests)

    class Staggered(Workflow):
        async def run(self, task, chat):
            await asyncio.sleep(0.5 if chat.key.attempt == 7 else 0.001 * chat.key.attempt)
            await chat(task.messages)
            return Result(reward=1.0)

    async def sizes() -> list[int]:
        engine = Slow()
        run = run_of(group_size=8, order="arrival", wave=4)
        scheduler = scheduler_of(run, Staggered(), engine)
        (one,) = await scheduler.play_all([(0, "d", 0)])
        assert one.reason is None
        scheduler.scorer.close()
        return [len(wave) for wave in engine.waves]

    found = asyncio.run(sizes())
    assert sum(found) == 8 and max(found) <= 4
    assert len(found) < 8  # batched …
    assert found[-1] == 1  # … and the late one played alone


def test_an_engine_without_waves_gets_each_request_at_once():
    async def play() -> tuple[int, str | None]:
        engine = Scripted()
        scheduler = scheduler_of(run_of(order="arrival", min_attempts=0), Wandering(0.0), engine, waves=False)
        (one,) = await scheduler.play_all([(0, "d", 0)], max_attempt_tokens=64)
        scheduler.scorer.close()
        return len(engine.waves), one.reason

    assert asyncio.run(play()) == (0, None)
