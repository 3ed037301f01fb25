"""Plays draws: bounded, deadlined, retried, accounted for."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trinity_core.errors import DataError, RunError
from trinity_core.protocols import Environment, LiveEngine, RunContext, Taskset, Workflow
from trinity_core.rollout.attempt import Play, Player, words_of
from trinity_core.rollout.dispatch import Arrival, Dispatcher, Lockstep
from trinity_core.rollout.given import record
from trinity_core.rollout.score import Scorer
from trinity_core.rollout.seeds import group_id, task_id
from trinity_core.types import Fault, Group, Invalid, Key, Ok, Role, Sampling, Task


@dataclass(frozen=True)
class Played:
    """One draw, played and scored."""

    group: Group
    reason: str | None = None
    """Why the group must not be used (too few scored attempts), else ``None``."""


@dataclass
class _Draw:
    """A draw in play."""

    index: int
    group: Group
    missing: int


class Scheduler:
    """Plays draws with the policy and scores them.

    Each of ``explorer.max_concurrent`` places plays one attempt after the other: the workflow once, in a world of its
    own. A fault is played again in the same place with a seed of its own, ``explorer.retries`` times; its finished
    siblings stay. What an attempt did is never lost: it ends with experiences and a score, or with a
    :class:`~trinity_core.types.Fault` that says what broke. A task that brings its attempts along (``Task.given``) is
    recorded instead: nothing is sampled and nothing is scored. An evaluation plays it.
    """

    def __init__(
        self,
        run: RunContext,
        workflow: Workflow,
        environment: Environment | None,
        engine: LiveEngine,
        scorer: Scorer,
        tasksets: Mapping[str, Taskset],
        *,
        waves: bool = True,
        on_tokens: Callable[[int], None] | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> None:
        """``workflow`` and ``tasksets`` are live, ``environment`` is its config (opened for each attempt). ``waves``:
        whether the engine has that capability. Raises :class:`~trinity_core.errors.DataError` for an empty taskset."""
        for slot, taskset in tasksets.items():
            check_taskset(f"tasksets.{slot}", taskset)
        self.run, self.engine, self.scorer, self.tasksets = run, engine, scorer, tasksets
        self.player = Player(run, workflow, environment, on_tokens=on_tokens, on_warning=on_warning)
        self.counters, self.apart = self.player.counters, self.player.apart
        """What play has done; what evaluations have."""
        makers = [part.component for part in run.config.slots("operators").values()]
        self._unscored = not run.config.slots("rewards") and any(type(maker).makes_pairs for maker in makers)
        """Whether attempts without a score are of use: somebody compares them, and nothing scores them."""
        self._gate = asyncio.Lock()
        self._arrival = Arrival(engine, wave=run.config.explorer.wave, waves=waves)

    async def play(
        self,
        openings: Sequence[tuple[int, str, int]],
        *,
        stream: str = "play",
        sampling: Sampling | None = None,
        num_attempts: int | None = None,
        extra_roles: Sequence[Role] = (),
        min_attempts: int | None = None,
        max_attempt_tokens: int | None = None,
        tasksets: Mapping[str, Taskset] | None = None,
        on_wave: Callable[[list[Key]], None] | None = None,
    ) -> AsyncIterator[list[Played]]:
        """Play every ``(draw, slot, row)`` and yield its group once all its attempts are scored, together with the others that are
        by then: in the order of the openings under lockstep, else as they end.

        ``stream`` names the seed stream (an evaluation has its own); ``extra_roles`` adds attempts such as one
        *greedy*. Defaults come from the config. Cancelling, or closing the iterator, cancels all attempts and closes
        their worlds. Wrap it in ``contextlib.aclosing`` where you might leave early.
        """
        config = self.run.config
        ordered = config.explorer.order == "lockstep"
        count = config.algorithm.group_size if num_attempts is None else num_attempts
        sample: Role = "sample"
        roles = (*[sample] * count, *extra_roles)
        if sampling is None:
            sampling = sampling_of(self.run)
        least = min(config.explorer.min_attempts if min_attempts is None else min_attempts, count)
        dispatcher: Dispatcher = self._arrival
        if ordered:
            dispatcher = Lockstep(
                self.engine,
                config.explorer.wave,
                self._gate,
                on_wave,
                patience_s=config.explorer.attempt_timeout_s,
                on_warning=self.player.warn,
            )
        limit = max_attempt_tokens or config.sampling.max_attempt_tokens or sampling.max_tokens
        play = Play(stream, sampling, limit, dispatcher, roles)
        slots = tasksets or self.tasksets
        draws = [self._begin(i, opening, slots, len(roles), stream) for i, opening in enumerate(openings)]
        ended: asyncio.Queue[_Draw | BaseException] = asyncio.Queue()
        runner = asyncio.create_task(self._run(play, draws, ended))
        try:
            held: dict[int, _Draw] = {}
            position = 0
            while position < len(draws):
                for draw in await _ended(ended):
                    # under lockstep a draw waits for those before it
                    held[draw.index if ordered else position + len(held)] = draw
                ready = []
                while position in held:
                    draw = held.pop(position)
                    ready.append(Played(draw.group, _too_few(draw.group, least, unscored=self._unscored)))
                    position += 1
                self.player.counters_of(stream).groups += len(ready)
                if ready:
                    yield ready
        finally:
            runner.cancel()
            await asyncio.gather(runner, return_exceptions=True)
            if ordered:
                await dispatcher.close()

    async def play_all(self, openings: Sequence[tuple[int, str, int]], **options: Any) -> list[Played]:
        """:meth:`play`, all at once, in the order of the openings."""
        order = {(draw, slot, row): i for i, (draw, slot, row) in enumerate(openings)}
        async with contextlib.aclosing(self.play(openings, **options)) as played:  # type: ignore[type-var]
            found = [one async for some in played for one in some]
        return sorted(found, key=lambda one: order[one.group.draw, one.group.slot, one.group.row])

    async def close(self) -> None:
        """Fail what still waits for the engine. Twice is fine."""
        await self._arrival.close()

    def _begin(
        self, index: int, opening: tuple[int, str, int], tasksets: Mapping[str, Taskset], attempts: int, stream: str
    ) -> _Draw:
        draw, slot, row = opening
        task = task_of(tasksets, slot, row)
        group = Group(group_id(self.run.id, slot, row, draw), task, [], slot=slot, row=row, draw=draw)
        if not task.given or stream == "play":
            return _Draw(index, group, 0 if task.given else attempts)
        if not task.messages:
            raise DataError(
                f"eval.tasksets.{slot}[{row}]: a text to be learned asks nothing, so an evaluation cannot play it. Evaluate on "
                "tasks with messages"
            )
        return _Draw(index, group, attempts)

    async def _run(self, play: Play, draws: list[_Draw], ended: asyncio.Queue[_Draw | BaseException]) -> None:
        ending: BaseException = RunError("the play ended before all its draws did")
        queue = deque((draw, index) for draw in draws if draw.missing for index in range(len(play.roles)))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._record([draw for draw in draws if not draw.missing], ended))
                places = min(len(queue), self.run.config.explorer.max_concurrent)
                for place in range(places):
                    play.dispatcher.enter(place)
                for place in range(places):
                    tasks.create_task(self._place(place, play, queue, tasks, ended))
        except* Exception as errors:  # noqa: BLE001 - the first is raised where play() is read
            first: BaseException = errors
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            ending = first
        finally:
            # The last thing to come; read only by a play that still waits for a draw, which must not wait for ever.
            ended.put_nowait(ending)

    async def _record(self, draws: list[_Draw], ended: asyncio.Queue[_Draw | BaseException]) -> None:
        """Draws of tasks that bring their attempts along."""
        for draw in draws:
            try:
                record(draw.group, self.run.renderer)
            except DataError as error:
                raise DataError(f"tasksets.{draw.group.slot}[{draw.group.row}]: {error}") from error
            ended.put_nowait(draw)
            await asyncio.sleep(0)  # a step of long texts must not hold up what is played

    async def _place(
        self,
        place: int,
        play: Play,
        queue: deque[tuple[_Draw, int]],
        tasks: asyncio.TaskGroup,
        ended: asyncio.Queue[_Draw | BaseException],
    ) -> None:
        """Play attempts until none is left. Under lockstep the next one starts before the wave can leave."""
        try:
            while queue:
                draw, index = queue.popleft()
                draw.group.attempts.append(await self.player.attempt(place, play, draw.group, index))
                draw.missing -= 1
                if draw.missing == 0:
                    tasks.create_task(self._score(play, draw, ended))
        finally:
            play.dispatcher.leave(place)

    async def _score(self, play: Play, draw: _Draw, ended: asyncio.Queue[_Draw | BaseException]) -> None:
        draw.group.attempts.sort(key=lambda attempt: attempt.index)
        await self.scorer.score(draw.group)
        counters = self.player.counters_of(play.stream)
        for attempt in draw.group.attempts:
            counters.faults += isinstance(attempt.score, Fault)
            counters.invalid += isinstance(attempt.score, Invalid)
        ended.put_nowait(draw)


def sampling_of(run: RunContext) -> Sampling:
    """The run's ``sampling`` node, for one call."""
    node = run.config.sampling
    return Sampling(node.temperature, node.top_p, node.top_k, node.max_response, tuple(node.stop))


def check_taskset(path: str, taskset: Taskset) -> None:
    """Refuse a taskset without tasks, at start."""
    if len(taskset) == 0:
        raise DataError(
            f"{path}: the taskset has no task. Check its fields (a path, a split, a filter that drops all?)"
        )


def task_of(tasksets: Mapping[str, Taskset], slot: str, row: int) -> Task:
    """Task ``row`` of ``slot``, under the kernel's id."""
    if slot not in tasksets:
        raise RunError(f"tasksets.{slot}: no such slot. Slots: {', '.join(tasksets) or 'none'}")
    try:
        task = tasksets[slot][row]
    except Exception as error:
        raise DataError(f"tasksets.{slot}[{row}]: {words_of(error)}") from error
    if not isinstance(task, Task):
        raise DataError(f"tasksets.{slot}[{row}]: expected a Task, got {type(task).__name__}")
    return dataclasses.replace(task, id=task_id(slot, row))


async def _ended(ended: asyncio.Queue[_Draw | BaseException]) -> list[_Draw]:
    """What has ended since, at least one draw; what went wrong is raised once all that ended before it was handed out."""
    draws: list[_Draw] = []
    item = await ended.get()
    while not isinstance(item, BaseException):
        draws.append(item)
        if ended.empty():
            return draws
        item = ended.get_nowait()
    if not draws:
        raise item
    ended.put_nowait(item)  # it is the last: nothing comes behind it
    return draws


def _too_few(group: Group, least: int, *, unscored: bool = False) -> str | None:
    """Why the group is of no use. What a task brought along needs no score; ``unscored``: nor does what was played."""
    samples = [attempt for attempt in group.attempts if attempt.role == "sample"]
    if group.attempts and not any(attempt.role in ("sample", "greedy") for attempt in group.attempts):
        return None
    useful = (Ok, Invalid) if unscored else (Ok,)
    scored = sum(isinstance(attempt.score, useful) for attempt in samples)
    if scored >= least and all(isinstance(a.score, Ok) for a in group.attempts if a.role == "greedy"):
        return None
    why = next(
        (a.score.reason for a in group.attempts if isinstance(a.score, Fault | Invalid)), "no attempt was played"
    )
    return f"{scored} of {len(samples)} attempts have a score, {least} are needed; the first without: {why}"
