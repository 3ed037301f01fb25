"""Parts that the runs of these tests name by import string."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from trinity_core.errors import RunError
from trinity_core.protocols import Operator, Reward, Tracker, Workflow
from trinity_core.types import Group, Result, Task


@dataclass(frozen=True)
class Right(Reward):
    """1 where the reply is the answer; async, so it needs no process of its own."""

    async def __call__(self, attempt: Any) -> float:
        return float(attempt.text.strip() == attempt.task.answer)


@dataclass(frozen=True)
class Keeps(Operator):
    """Keeps one draw in ``every``; 0: none at all."""

    every: int = 0

    async def __call__(self, group: Group) -> list[Group]:
        return [group] if self.every and group.draw % self.every == 0 else []


@dataclass(frozen=True)
class Twice(Operator):
    """Two groups of one, as an augmentation makes them."""

    async def __call__(self, group: Group) -> list[Group]:
        return [group, group]


@dataclass(frozen=True)
class Waits(Workflow):
    """A workflow that never ends."""

    async def run(self, task: Task, chat: Any) -> Result:
        await asyncio.sleep(1e6)
        return Result()


@dataclass(frozen=True)
class Breaks(Tracker):
    """Its second word of progress is its last."""

    def open(self, run: Any) -> LiveBreaks:
        return LiveBreaks()


class LiveBreaks(Tracker):
    """Counts its words."""

    def __init__(self) -> None:
        self.heard = 0

    def progress(self, state: Any) -> None:
        self.heard += 1
        if self.heard == 2:
            raise RunError("the disk of the tracker is full")
