"""Rewards for the tests of scoring: a module of its own, as reward processes import them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

from trinity_core.protocols import Operator, Reward
from trinity_core.types import Invalid, Ok


@dataclass(frozen=True)
class Length(Reward):
    """The number of characters."""

    times: float = 1.0

    def __call__(self, attempt):
        return self.times * len(attempt.text)


@dataclass(frozen=True)
class Awkward(Reward):
    """Does what the text says."""

    timeout_s: ClassVar[float] = 0.5

    def __call__(self, attempt):
        text = attempt.text
        if text == "spin":
            while True:
                pass
        if text == "sleep":
            time.sleep(60)
        if text == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(1)
        if text == "die":
            os._exit(3)
        if text == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "exit":
            sys.exit(0)
        if text == "raise":
            raise ZeroDivisionError("by nothing")
        if text == "print":
            print("noise" * 1000)
            os.write(1, b"more noise")
        return {"nan": float("nan"), "inf": float("inf"), "none": None, "word": "good", "true": True}.get(text, 1.0)


@dataclass(frozen=True)
class Child(Reward):
    """Leaves a process behind and hangs."""

    file: str = ""
    timeout_s: ClassVar[float] = 0.5

    def __call__(self, attempt):
        child = subprocess.Popen(["sleep", "60"])
        with open(self.file, "w") as out:
            out.write(str(child.pid))
        time.sleep(60)


@dataclass(frozen=True)
class Alarm(Reward):
    """A verifier that limits itself with SIGALRM, which works in a main thread alone."""

    def __call__(self, attempt):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        signal.alarm(0)
        return 1.0


@dataclass(frozen=True)
class Gold(Reward):
    """Invalid where there is no gold answer."""

    def __call__(self, attempt):
        if attempt.task.answer is None:
            return Invalid("no gold")
        return Ok(float(attempt.text == attempt.task.answer), {"length": float(len(attempt.text))})


@dataclass(frozen=True)
class Rank(Reward):
    """A group against itself: the place by length."""

    short: int = 0

    def group(self, attempts):
        order = sorted(range(len(attempts)), key=lambda i: len(attempts[i].text))
        return [float(order.index(i)) for i in range(len(attempts))][: len(attempts) - self.short]


@dataclass(frozen=True)
class Waits(Reward):
    """Asks somebody."""

    timeout_s: ClassVar[float] = 0.2

    def open(self, run):
        return Answers(run.id)

    async def __call__(self, attempt):
        raise NotImplementedError


class Answers:
    def __init__(self, who):
        self.who, self.calls, self.closed = who, [], 0

    async def __call__(self, attempt):
        import asyncio

        self.calls.append(attempt.text)
        if attempt.text == "hang":
            await asyncio.sleep(60)
        if attempt.text == "flaky" and self.calls.count("flaky") == 1:
            raise ConnectionError("try again")
        return 0.5

    def close(self):
        self.closed += 1


@dataclass(frozen=True)
class Both(Reward):
    def __call__(self, attempt):
        return 1.0

    def group(self, attempts):
        return [1.0] * len(attempts)


@dataclass(frozen=True)
class Doubles(Operator):
    """Two of each group, or trouble."""

    trouble: str = ""

    def __call__(self, group):
        import copy

        if self.trouble == "raise":
            raise KeyError("no such thing")
        if self.trouble == "none":
            return None
        twin = copy.deepcopy(group)
        twin.id += "-twin"
        twin.attempts[0].info["pid"] = os.getpid()
        return [group, twin]


@dataclass(frozen=True)
class Drops(Operator):
    async def __call__(self, group):
        return []
