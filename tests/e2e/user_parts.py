"""Parts as a careless user might write them; runs name them by import string."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from trinity_core.protocols import Loss, Reward, Taskset, Workflow
from trinity_core.types import Attempt, Invalid, Ok, Result, Score, Task


@dataclass(frozen=True)
class Raises(Reward):
    """A reward that always raises."""

    def __call__(self, attempt: Attempt) -> Score:
        raise ValueError("no such column: answer")


@dataclass(frozen=True)
class Hangs(Reward):
    """A reward that never ends."""

    timeout_s = 0.5

    def __call__(self, attempt: Attempt) -> Score:
        time.sleep(1e6)
        return Ok(0.0)


@dataclass(frozen=True)
class Dies(Reward):
    """A reward that kills its process."""

    def __call__(self, attempt: Attempt) -> Score:
        os._exit(3)


@dataclass(frozen=True)
class NotANumber(Reward):
    """A reward that is not finite."""

    def __call__(self, attempt: Attempt) -> float:
        return float("nan")


@dataclass(frozen=True)
class Unparseable(Reward):
    """A gold answer that cannot be read."""

    def __call__(self, attempt: Attempt) -> Score:
        return Invalid("the gold answer cannot be read")


@dataclass(frozen=True)
class Nothing(Workflow):
    """A workflow that forgets to return."""

    async def run(self, task: Task, chat) -> Result:
        await chat(task.messages)


@dataclass(frozen=True)
class Empty(Taskset):
    """A taskset without tasks."""

    def __len__(self) -> int:
        return 0

    def __getitem__(self, row: int) -> Task:
        raise IndexError(row)


@dataclass(frozen=True)
class Broken(Loss):
    """A loss that raises."""

    def __call__(self, batch):
        raise ZeroDivisionError("division by zero in my loss")
