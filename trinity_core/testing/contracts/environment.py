"""What every world keeps to: the same actions lead to the same steps, two plays never meet, any text is an action.

A world that needs more of its task than a message names one: ``@classmethod example_task(cls) -> Task``; one whose actions
have a form names some: ``@classmethod example_actions(cls) -> list[str]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trinity_core.testing.fakes import FakeTask
from trinity_core.testing.rules import require
from trinity_core.testing.subject import Subject
from trinity_core.testing.subject import run_for as a_run
from trinity_core.types import Step, Task

HOSTILE = ("", " \n", "1" * 5_000, "\u0000\u202e", '{"tool": [', "<|im_end|>", "look at the answer")
LONGEST = 64
"""Actions after which the kit stops playing: worlds may go on for ever, attempts may not."""


def example_task(component: Any) -> Task:
    return component.example_task() if hasattr(component, "example_task") else FakeTask("4", "play")


def example_actions(component: Any) -> list[str]:
    """What the kit answers, in turn."""
    return list(component.example_actions()) if hasattr(component, "example_actions") else ["1", "7", "4", "hello"]


def _life(component: Any, tmp: Path) -> Any:
    return component.open(a_run(Subject("environment", ""), component, tmp))


async def _play(live: Any, task: Task, actions: Sequence[str]) -> list[Step]:
    """All steps of one play: the reset, then one for each action until the world is done."""
    steps = [await live.reset(task)]
    for n in range(LONGEST):
        if steps[-1].done:
            break
        steps.append(await live.step(actions[n % len(actions)]))
    return steps


def _check(step: Any) -> None:
    require(isinstance(step, Step), f"it answered {type(step).__name__}: return a Step")
    for message in step.messages:
        fits = isinstance(message, dict) and isinstance(message.get("role"), str) and message.get("content") is not None
        require(fits, f"a message needs role and content, got {message!r}")
    fits = step.reward is None or (isinstance(step.reward, (int, float)) and math.isfinite(step.reward))
    require(fits, f"reward {step.reward!r}: a finite number, or None")
    require(
        isinstance(step.state, str | None),
        f"state {step.state!r}: a string (a hash of what the policy can see), or None",
    )
    require(isinstance(step.done, bool), f"done is {step.done!r}, not a bool")


async def answers_with_steps(component: Any, tmp: Path) -> None:
    live = _life(component, tmp)
    try:
        steps = await _play(live, example_task(component), example_actions(component))
        for step in steps:
            _check(step)
        require(len(steps) > 1, "it is done before the first action: nothing can be learned")
        unfinished = [n for n, step in enumerate(steps) if not step.done and not step.messages and n > 0]
        require(not unfinished, f"step {unfinished[:1]} goes on without a message: the policy has nothing to answer")
    finally:
        await live.close()


async def same_actions_same_steps(component: Any, tmp: Path) -> None:
    first, second = _life(component, tmp), _life(component, tmp)
    try:
        task, actions = example_task(component), example_actions(component)
        a, b = await _play(first, task, actions), await _play(second, task, actions)
        require(a == b, "the same task and actions led to other steps")
    finally:
        await first.close()
        await second.close()


async def two_plays_never_meet(component: Any, tmp: Path) -> None:
    """Interleaved, each play sees what it sees alone."""
    task, actions = example_task(component), example_actions(component)
    alone = _life(component, tmp)
    expected = await _play(alone, task, actions)
    await alone.close()
    lives = [_life(component, tmp) for _ in range(2)]
    try:
        seen = [[await live.reset(task)] for live in lives]
        for n in range(len(expected) - 1):
            for live, steps in zip(lives, seen):
                steps.append(await live.step(actions[n % len(actions)]))
        require(seen == [expected, expected], "two plays at once see other steps than one alone: they share state")
    finally:
        for live in lives:
            await live.close()


async def any_text_is_an_action(component: Any, tmp: Path) -> None:
    """A policy writes anything; a world answers, it does not raise."""
    for text in HOSTILE:
        live = _life(component, tmp)
        try:
            await live.reset(example_task(component))
            _check(await live.step(text))
        finally:
            await live.close()


async def closes_at_any_moment(component: Any, tmp: Path) -> None:
    """Before the reset, after it, and in the middle of a play."""
    for moment in range(3):
        live = _life(component, tmp)
        if moment > 0:
            await live.reset(example_task(component))
        if moment > 1:
            await live.step(example_actions(component)[0])
        await live.close()


RULES = {
    "answers with steps": answers_with_steps,
    "same actions, same steps": same_actions_same_steps,
    "two plays never meet": two_plays_never_meet,
    "any text is an action": any_text_is_an_action,
    "closes at any moment": closes_at_any_moment,
}
