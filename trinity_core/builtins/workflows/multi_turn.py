"""A world, turn by turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trinity_core.errors import ConfigError
from trinity_core.protocols import RunContext, Workflow
from trinity_core.rollout.chat import Chat
from trinity_core.types import Result, Task


@dataclass(frozen=True)
class MultiTurn(Workflow):
    """Plays the run's ``environment`` until it is done: what the world says, what the policy answers, in turn.

    Each step's reward goes to the call that earned it, each state to the call taken in it. The workflow's own reward is
    the sum of the world's (none, if the world gives none).
    """

    needs_environment: ClassVar[bool] = True
    beside: ClassVar[tuple[str, ...]] = ("environment=guess",)
    """What a run that selects it needs beside it, for the conformance kit."""

    max_turns: int = 8
    """Actions after which the attempt ends, done or not."""

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ConfigError(f"workflow.max_turns: {self.max_turns}; at least one action must be allowed")

    def open(self, run: RunContext) -> MultiTurn:
        if run.config.parts and run.config.part("environment") is None:
            raise ConfigError(
                "workflow: multi_turn plays an environment and the run has none. Select one: environment=guess"
            )
        return self

    async def run(self, task: Task, chat: Chat) -> Result:
        world = chat.environment
        if world is None:
            raise ConfigError(
                "workflow: multi_turn plays an environment and the run has none. Select one: environment=guess"
            )
        step = await world.reset(task)
        messages = [*(step.messages or task.messages)]
        reward: float | None = None
        turns = 0
        while turns < self.max_turns and not step.done:
            if step.state is not None:
                chat.mark(state=step.state)
            reply = await chat(messages)
            if not len(reply.tokens):
                break  # the attempt's tokens are spent: an answer that was never given is no action
            turns += 1
            step = await world.step(reply.text)
            if step.reward is not None:
                chat.mark(reward=step.reward)
                reward = step.reward + (reward or 0.0)
            messages = [*messages, reply.message, *step.messages]
        return Result(reward=reward, info={"turns": turns, "done": step.done})
