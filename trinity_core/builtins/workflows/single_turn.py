"""One question, one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trinity_core.protocols import Workflow
from trinity_core.rollout.chat import Chat
from trinity_core.types import Result, Task


@dataclass(frozen=True)
class SingleTurn(Workflow):
    """Asks the policy the task's messages, once. What the answer is worth is the rewards' to say."""

    needs_reward: ClassVar[bool] = True

    async def run(self, task: Task, chat: Chat) -> Result:
        await chat(task.messages)
        return Result()
