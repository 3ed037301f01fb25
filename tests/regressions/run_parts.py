"""Parts that the runs of these tests name by import string."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from trinity_core.builtins.engines.fake import FakeEngine, LiveFakeEngine
from trinity_core.protocols import Operator, Reward, Selector, Tracker, Workflow
from trinity_core.types import Group, Origin, Result, Task

# --- rewards: those that wait need no process -------------------------------------------------------------------------


@dataclass(frozen=True)
class Right(Reward):
    """1 where the reply is the answer."""

    wait_s: float = 0.0
    """Seconds it takes."""

    async def __call__(self, attempt: Any) -> float:
        await asyncio.sleep(self.wait_s)
        return float(attempt.text.strip() == attempt.task.answer)


@dataclass(frozen=True)
class Shape(Reward):
    """A number for any text at all: attempts of a group nearly always differ in it."""

    async def __call__(self, attempt: Any) -> float:
        return sum((place + 1) * ord(character) for place, character in enumerate(attempt.text)) % 97 / 97


# --- play -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counting(Selector):
    """Rows in order, by a count of its own."""

    def open(self, run: Any) -> LiveCounting:
        return LiveCounting()


class LiveCounting(Selector):
    """The count."""

    def __init__(self) -> None:
        self.next = 0

    def pick(self, draws: Any, sizes: Any, weights: Any) -> list[tuple[str, int]]:
        slot = next(iter(sizes))
        first, self.next = self.next, self.next + len(draws)
        return [(slot, number % sizes[slot]) for number in range(first, self.next)]

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


@dataclass(frozen=True)
class Masked(Operator):
    """Marks every token of draws from ``since`` on as context: nothing is left to train."""

    since: int = 0

    async def __call__(self, group: Group) -> list[Group]:
        if group.draw >= self.since:
            for attempt in group.attempts:
                for experience in attempt.experiences:
                    experience.origin_T[:] = Origin.CONTEXT
        return [group]


@dataclass(frozen=True)
class Waits(Workflow):
    """A workflow that never ends."""

    async def run(self, task: Task, chat: Any) -> Result:
        await asyncio.sleep(1e6)
        return Result()


@dataclass(frozen=True)
class Silent(FakeEngine):
    """An engine that gives no log-probabilities."""

    def open(self, run: Any) -> LiveFakeEngine:
        return LiveSilent(super().open(run).table)


class LiveSilent(LiveFakeEngine):
    """Samples as ever, and leaves out what it sampled with."""

    async def generate_wave(self, requests: Any) -> Any:
        completions = await super().generate_wave(requests)
        for completion in completions:
            completion.logp_N = np.full(len(completion.tokens_N), np.nan, np.float32)
        return completions


# --- watching ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Diary(Tracker):
    """Everything a tracker hears, with seconds since the run started, in ``diary.jsonl``."""

    def open(self, run: Any) -> LiveDiary:
        return LiveDiary(run.dir / "diary.jsonl")


class LiveDiary(Tracker):
    """The open diary."""

    def __init__(self, path: Any) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed with the run
        self._since = time.perf_counter()

    def _write(self, event: str, what: Any) -> None:
        line = {"event": event, "s": time.perf_counter() - self._since, "what": what}
        self._file.write(json.dumps(line, default=str) + "\n")
        self._file.flush()

    def started(self, run: Any) -> None:
        self._since = time.perf_counter()
        self._write("started", {"plan": {name: dict(section) for name, section in run["plan"].items()}})

    def progress(self, state: Any) -> None:
        self._write("progress", dict(state))

    def step(self, step: int, metrics: Any) -> None:
        self._write("step", dict(metrics))

    def close(self) -> None:
        self._file.close()
