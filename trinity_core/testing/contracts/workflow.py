"""What every workflow keeps to: what it trains is what was sampled, it can be stopped, and a broken engine is no zero."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trinity_core.rollout.chat import AttemptEnded, Chat
from trinity_core.testing.fakes import FakeRun, FakeTask
from trinity_core.testing.rules import require
from trinity_core.types import Completion, Experience, Key, Origin, Request, Result, Sampling, Task


def example_task(component: Any) -> Task:
    """A task this workflow can play: its own, else that of the world it plays."""
    if hasattr(component, "example_task"):
        return component.example_task()
    return FakeTask("4", "say 4")


@dataclass
class Play:
    """One attempt: what the workflow returned, and what the engine was asked and answered."""

    result: Any = None
    requests: list[Request] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    experiences: list[Experience] = field(default_factory=list)

    @property
    def sampled(self) -> list[int]:
        """All sampled tokens, in order of calls."""
        calls = sorted(((call.step, call, e) for e in self.experiences for call in e.calls), key=lambda item: item[0])
        return [int(token) for _, call, e in calls for token in e.tokens_T[call.start : call.stop]]


class Stage:
    """A fake engine, a world where the workflow needs one, and the workflow itself, opened in one run."""

    def __init__(self, component: Any, tmp: Path) -> None:
        from trinity_core.builtins.engines.fake import FakeEngine

        self.component = component
        self.run = FakeRun(dir=tmp)
        self.engine = FakeEngine().open(self.run)
        self.engine.version = 0
        self.live = component.open(self.run)

    async def play(
        self,
        attempt: int = 0,
        *,
        max_attempt_tokens: int = 24,
        submit: Callable[[Request], Awaitable[Completion]] | None = None,
        task: Task | None = None,
    ) -> Play:
        play = Play()

        async def ask(request: Request) -> Completion:
            play.requests.append(request)
            completion = await (submit or self.engine.generate)(request)
            play.completions.append(completion)
            return completion

        world = self._world()
        chat = Chat(
            key=Key("train", 0, 0, attempt),
            submit=ask,
            renderer=self.run.renderer,
            sampling=Sampling(max_tokens=6),
            max_attempt_tokens=max_attempt_tokens,
            models=self.run.models,
            environment=world,
        )
        try:
            play.result = await self.live.run(task or self.task(), chat)
        except AttemptEnded:
            play.result = Result(text=chat.text)
        finally:
            await world.close()
        play.experiences = chat.recorder.experiences()
        return play

    def _world(self) -> Any:
        from trinity_core.builtins.environments.guess import Guess

        return Guess().open(self.run)

    def task(self) -> Task:
        from trinity_core.builtins.environments.guess import Guess
        from trinity_core.testing.contracts import environment

        own = example_task(self.component)
        return own if hasattr(self.component, "example_task") else environment.example_task(Guess()) or own


async def _staged(component: Any, tmp: Path, ask: Callable[[Stage], Awaitable[None]]) -> None:
    stage = Stage(component, tmp)
    try:
        await ask(stage)
    finally:
        answer = stage.live.close() if hasattr(stage.live, "close") else None
        if hasattr(answer, "__await__"):
            await answer
        stage.engine.close()


async def returns_a_result(component: Any, tmp: Path) -> None:
    async def ask(stage: Stage) -> None:
        play = await stage.play()
        require(
            isinstance(play.result, Result),
            f"run() returned {play.result!r}: return Result(reward=…, text=…, info={{…}})",
        )
        require(bool(play.requests), "it never asked the policy: there is nothing to train")

    await _staged(component, tmp, ask)


async def actions_are_the_sampled_ids(component: Any, tmp: Path) -> None:
    """Tokens and log-probabilities in the experience are those the engine gave, never decoded and encoded again."""

    async def ask(stage: Stage) -> None:
        for attempt in range(4):
            play = await stage.play(attempt)
            given = [int(token) for completion in play.completions for token in completion.tokens_N]
            require(play.sampled == given, f"the engine sampled {given}, the experience says {play.sampled}")
            logp = [e.logp_T[e.origin_T == Origin.SAMPLED] for e in play.experiences]
            told = [completion.logp_N for completion in play.completions]
            a, b = np.sort(np.concatenate(logp)), np.sort(np.concatenate(told))
            require(np.array_equal(a, b.astype(np.float32)), "log-probabilities differ from those the engine gave")

    await _staged(component, tmp, ask)


async def same_key_same_play(component: Any, tmp: Path) -> None:
    """Pure in task and replies: an attempt played again is the same attempt."""

    async def ask(stage: Stage) -> None:
        first, again = await stage.play(1), await stage.play(1)
        same = [r.tokens_T.tolist() for r in first.requests] == [r.tokens_T.tolist() for r in again.requests]
        require(same and first.sampled == again.sampled, "the same attempt asked or got something else the second time")

    await _staged(component, tmp, ask)


async def attempts_at_once_never_meet(component: Any, tmp: Path) -> None:
    """One live workflow plays many attempts at a time."""

    async def ask(stage: Stage) -> None:
        alone = [await stage.play(n) for n in range(3)]
        together = await asyncio.gather(*(stage.play(n) for n in range(3)))
        require(
            [p.sampled for p in alone] == [p.sampled for p in together],
            "attempts played at once differ from each alone: they share state",
        )

    await _staged(component, tmp, ask)


async def can_be_cancelled(component: Any, tmp: Path) -> None:
    """A deadline ends an attempt wherever it waits."""

    async def never(request: Request) -> Completion:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def ask(stage: Stage) -> None:
        task = asyncio.create_task(stage.play(submit=never))
        await asyncio.sleep(0.05)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=5.0)
        require(bool(done), "cancelled, and 5 s later it still runs")
        require(task.cancelled(), "it swallowed the cancellation: let CancelledError pass")

    await _staged(component, tmp, ask)


async def a_broken_engine_is_no_zero(component: Any, tmp: Path) -> None:
    """An exception from the engine leaves ``run``; a caught one would be scored as a bad answer."""

    async def broken(request: Request) -> Completion:
        raise ConnectionError("the engine is gone")

    async def ask(stage: Stage) -> None:
        try:
            play = await stage.play(submit=broken)
        except ConnectionError:
            return
        raise AssertionError(f"the engine broke and run() returned {play.result!r} as if the policy had answered")

    await _staged(component, tmp, ask)


async def ends_when_tokens_are_spent(component: Any, tmp: Path) -> None:
    """With three tokens for the whole attempt it ends, and soon."""

    async def ask(stage: Stage) -> None:
        play = await asyncio.wait_for(stage.play(max_attempt_tokens=3), timeout=10.0)
        require(len(play.sampled) <= 3, f"3 tokens were allowed, {len(play.sampled)} sampled")

    await _staged(component, tmp, ask)


async def task_is_not_changed(component: Any, tmp: Path) -> None:
    async def ask(stage: Stage) -> None:
        task = stage.task()
        before = copy.deepcopy(task)
        await stage.play(task=task)
        require(task == before, "the task changed while it was played; its other attempts would see that")

    await _staged(component, tmp, ask)


RULES = {
    "returns a result": returns_a_result,
    "actions are the sampled ids": actions_are_the_sampled_ids,
    "same attempt, same play": same_key_same_play,
    "attempts at once never meet": attempts_at_once_never_meet,
    "can be cancelled": can_be_cancelled,
    "a broken engine is no zero": a_broken_engine_is_no_zero,
    "ends when its tokens are spent": ends_when_tokens_are_spent,
    "does not change its task": task_is_not_changed,
}
