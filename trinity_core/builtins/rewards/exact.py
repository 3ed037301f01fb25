"""The answer, word for word."""

from __future__ import annotations

from dataclasses import dataclass

from trinity_core.protocols import Reward
from trinity_core.types import Attempt, Invalid


def last_line(text: str) -> str:
    """The last line that is not empty, without the space around it and one final period.

    >>> last_line("Let me see.\\n 42. \\n")
    '42'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removesuffix(".").strip() if lines else ""


@dataclass(frozen=True)
class Exact(Reward):
    """1 if the last line of the final text is the task's gold answer, else 0. Both are read by :func:`last_line`.

    A task without a gold answer, or with an empty one, has no score (*invalid*).

    >>> from trinity_core.testing.fakes import FakeAttempt
    >>> Exact()(FakeAttempt("The sum is\\n12.", answer="12"))
    1.0
    """

    def __call__(self, attempt: Attempt) -> float | Invalid:
        gold = attempt.task.answer if attempt.task is not None else None
        if gold is None:
            return Invalid("the task has no gold answer")
        if not last_line(gold):
            return Invalid(f"the gold answer {gold!r} is empty")
        return float(last_line(attempt.text) == last_line(gold))
