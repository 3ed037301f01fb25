"""Numbers to be found by asking: tasks of the environment ``guess``."""

from __future__ import annotations

import random
from dataclasses import dataclass

from trinity_core.errors import ConfigError
from trinity_core.protocols import Taskset
from trinity_core.types import Task


@dataclass(frozen=True)
class GuessTasks(Taskset):
    """A secret number in each row, drawn from (seed, row). For ``workflow=multi_turn environment=guess``."""

    size: int = 1024
    """Rows."""
    low: int = 1
    """Smallest secret."""
    high: int = 9
    """Largest secret."""
    seed: int = 0
    """Another seed, other secrets."""

    def __post_init__(self) -> None:
        if self.high < self.low or self.size < 0:
            raise ConfigError(f"guess: no number lies between low={self.low} and high={self.high}")

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> Task:
        if not 0 <= row < self.size:
            raise IndexError(f"row {row} of {self.size}")
        secret = random.Random(f"{self.seed}/guess/{row}").randint(self.low, self.high)
        return task_for(secret, self.low, self.high, f"guess-{self.seed}-{row}")


def task_for(secret: int, low: int, high: int, name: str) -> Task:
    """The task of finding ``secret``. It has no gold answer: the world knows when it is found."""
    question = (
        f"I think of a whole number from {low} to {high}. Guess it. Reply with only a number; "
        "I say higher or lower until you have it."
    )
    data = {"secret": secret, "low": low, "high": high}
    return Task(name, ({"role": "user", "content": question},), None, data)
