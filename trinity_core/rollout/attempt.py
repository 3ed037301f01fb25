"""One attempt: a workflow played once, in a world of its own, with its retries."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgpack

from trinity_core.errors import RunError
from trinity_core.protocols import Environment, RunContext, Workflow
from trinity_core.rollout.chat import AttemptEnded, Chat, TooManyCalls
from trinity_core.rollout.dispatch import Dispatcher, EngineFailed, Lockstep
from trinity_core.rollout.outcome import as_score, place_of
from trinity_core.types import Attempt, Fault, Group, Key, Result, Role, Sampling, Task

log = logging.getLogger("trinity")
_CLOSE_S = 10.0
_BROKEN = 16
"""Attempts in a row from the start, all faults: workflow, world or engine is broken, and the run stops with the reason."""


@dataclass
class Counters:
    """What play has done so far. Numbers only grow; read them whenever you like."""

    attempts: int = 0
    """Attempts ended, retries not counted."""
    calls: int = 0
    tokens: int = 0
    """Tokens sampled, also by tries that faulted."""
    retries: int = 0
    faults: int = 0
    """Attempts that have no score because playing or scoring broke."""
    invalid: int = 0
    """Attempts for which no score exists."""
    branches: int = 0
    """Calls whose prompt did not extend the experience before it."""
    groups: int = 0


@dataclass(frozen=True)
class Play:
    """What is the same for every attempt of one :meth:`Scheduler.play`."""

    stream: str
    sampling: Sampling
    max_attempt_tokens: int
    dispatcher: Dispatcher
    roles: tuple[Role, ...]


class Player:
    """Plays attempts. What one did is never lost: it ends with experiences and perhaps the workflow's own score, or
    with a :class:`~trinity_core.types.Fault` that says what broke."""

    def __init__(
        self,
        run: RunContext,
        workflow: Workflow,
        environment: Environment | None,
        *,
        on_tokens: Callable[[int], None] | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> None:
        self.run, self.workflow, self.environment = run, workflow, environment
        self.counters = Counters()
        self.apart = Counters()
        """The same of other streams: evaluations."""
        self._last_error: BaseException | None = None
        self._only_faults = 0
        """Attempts that faulted, while there was no other; -1 once there was."""
        self._on_tokens, self.warn = on_tokens, on_warning or log.warning

    def counters_of(self, stream: str) -> Counters:
        """Evaluations are counted apart: what a run shows of its play is play alone."""
        return self.counters if stream == "play" else self.apart

    async def attempt(self, place: int, play: Play, group: Group, index: int) -> Attempt:
        """One attempt, with its retries."""
        for number in range(self.run.config.explorer.retries + 1):
            attempt = await self._try(place, play, group, index, number)
            fault = attempt.score
            if not isinstance(fault, Fault) or not fault.retryable or number == self.run.config.explorer.retries:
                break
            self.counters_of(play.stream).retries += 1
        self.counters_of(play.stream).attempts += 1
        self._watch(attempt)
        return attempt

    def _watch(self, attempt: Attempt) -> None:
        if self._only_faults < 0 or not isinstance(attempt.score, Fault):
            self._only_faults = -1
            return
        self._only_faults += 1
        if self._only_faults >= _BROKEN:
            raise RunError(
                f"workflow: none of the first {self._only_faults} attempts could be played; the last: {attempt.score.reason}"
            ) from self._last_error

    async def _try(self, place: int, play: Play, group: Group, index: int, number: int) -> Attempt:
        role, explorer = play.roles[index], self.run.config.explorer
        key = Key(group.slot, group.row, group.draw, index, number, 0, play.stream)
        sampling = dataclasses.replace(play.sampling, temperature=0.0) if role == "greedy" else play.sampling
        chat = Chat(
            key=key,
            submit=lambda request: play.dispatcher.submit(request, place),
            renderer=self.run.renderer,
            sampling=sampling,
            max_attempt_tokens=play.max_attempt_tokens,
            max_calls=explorer.max_calls,
            run_seed=self.run.seed,
            models=self.run.models,
            on_tokens=partial(self._count, play.stream),
        )
        play.dispatcher.now(place, key)
        deadline = None if isinstance(play.dispatcher, Lockstep) else explorer.attempt_timeout_s
        fault: Fault | None = None
        result = Result()
        try:
            async with asyncio.timeout(deadline) as timer:
                result = await self._in_a_world(group.task, chat)
            fault = _unusable(result, self.workflow)
        except AttemptEnded as end:
            result = Result(info={"ended": str(end)})
        except TooManyCalls as error:
            fault = Fault(str(error), retryable=False)
        except TimeoutError as error:
            late = timer.expired()
            fault = Fault(
                f"the attempt took longer than explorer.attempt_timeout_s={deadline}" if late else words_of(error)
            )
        except EngineFailed as error:
            if isinstance(play.dispatcher, Lockstep):
                raise
            fault = Fault(str(error))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # nobody cancelled this attempt: something it awaited was
            fault = Fault(f"{type(self.workflow).__name__}: what it waited for was cancelled ({words_of(error)})")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            log.debug("attempt %s faulted", key, exc_info=error)
            self._last_error = error
            fault = Fault(f"{type(self.workflow).__name__}: {words_of(error)}{place_of(error)}")
        self.counters_of(play.stream).branches += chat.recorder.num_branches
        if fault is not None:
            # What a broken attempt sampled is never trained: only its words are kept, for whoever looks into it.
            return Attempt([], role, chat.text, chat.messages, {}, fault, index, group.task)
        info = dict(result.info)
        if chat.recorder.num_branches:
            info.setdefault("branches", chat.recorder.num_branches)
        score = None if result.reward is None else as_score(result.reward, f"{type(self.workflow).__name__}'s reward")
        text = chat.text if result.text is None else result.text
        return Attempt(chat.recorder.experiences(), role, text, chat.messages, info, score, index, group.task)

    async def _in_a_world(self, task: Task, chat: Chat) -> Result:
        if self.environment is None:
            return await self.workflow.run(task, chat)
        world = self.environment.open(self.run)
        try:
            chat.environment = world
            return await self.workflow.run(task, chat)
        finally:
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await world.close()
            except Exception as error:  # noqa: BLE001 - a world that will not close must not cost its attempt
                self.warn(f"environment {type(self.environment).__name__}: close() failed: {words_of(error)}")

    def _count(self, stream: str, tokens: int) -> None:
        counters = self.counters_of(stream)
        counters.calls += 1
        counters.tokens += tokens
        if self._on_tokens is not None and counters is self.counters:
            self._on_tokens(tokens)


def _unusable(result: object, workflow: Workflow) -> Fault | None:
    """Why what a workflow returned cannot be used. Playing again would not help."""
    name = type(workflow).__name__
    if not isinstance(result, Result):
        said = "nothing" if result is None else f"a {type(result).__name__}"
        return Fault(f"{name}.run returned {said}: return Result(reward=None, text=None, info={{}})", retryable=False)
    try:
        msgpack.packb(dict(result.info))
    except (TypeError, ValueError, OverflowError) as error:
        return Fault(
            f"{name}: Result.info must be plain data (numbers, strings, lists, maps): {error}", retryable=False
        )
    if result.text is not None and not isinstance(result.text, str):
        return Fault(f"{name}: Result.text is a {type(result.text).__name__}, not a string", retryable=False)
    return None


def words_of(error: BaseException) -> str:
    """Class and message of an exception, in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
