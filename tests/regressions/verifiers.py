"""Verifiers with the habits of real ones. A module of its own, as reward processes import it."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import ClassVar

from trinity_core.protocols import Reward
from trinity_core.types import Invalid, Ok


@dataclass(frozen=True)
class LimitsItself(Reward):
    """Keeps its own time with SIGALRM, which raises outside a main thread."""

    def __call__(self, attempt):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        try:
            return float(attempt.text == "4")
        finally:
            signal.alarm(0)


@dataclass(frozen=True)
class Hangs(Reward):
    """Hangs on some answers, without any limit of its own."""

    timeout_s: ClassVar[float] = 0.4

    def __call__(self, attempt):
        if attempt.text == "9**9**9":
            while True:
                time.sleep(0.01)
        return 1.0


@dataclass(frozen=True)
class Reads(Reward):
    """Reads numbers; what it cannot read it says."""

    def __call__(self, attempt):
        try:
            gold = float(attempt.task.answer)
        except ValueError:
            return Invalid(f"gold {attempt.task.answer!r} is no number")
        return float(float(attempt.text) == gold)


@dataclass(frozen=True)
class TwoViews(Reward):
    """Strict and flexible."""

    def __call__(self, attempt):
        strict = float(attempt.text == attempt.task.answer)
        flexible = float(attempt.task.answer in attempt.text)
        return Ok(strict, {"strict": strict, "flexible": flexible})


@dataclass(frozen=True)
class Believes(Reward):
    """Takes whatever number the policy wrote."""

    def __call__(self, attempt):
        return float(attempt.text)
