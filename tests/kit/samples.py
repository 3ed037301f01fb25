"""Components that each break one rule, and one that breaks none. The kit is tested on them."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trinity_core.protocols import Reward, Selector, Taskset
from trinity_core.types import Attempt, Invalid, Ok, Score, Task

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass(frozen=True)
class Good(Reward):
    """1 where the gold answer is in the text."""

    bonus: float = 1.0
    """What a hit is worth."""

    def __call__(self, attempt: Attempt) -> Score:
        if attempt.task is None or attempt.task.answer is None:
            return Invalid("no gold answer")
        return Ok(self.bonus * float(attempt.task.answer in attempt.text))


@dataclass(frozen=True)
class Undocumented(Reward):
    bonus: float = 1.0

    def __call__(self, attempt: Attempt) -> Score:
        return Ok(self.bonus)


@dataclass
class Thawed(Reward):
    """Not frozen."""

    def __call__(self, attempt: Attempt) -> Score:
        return Ok(1.0)


@dataclass(frozen=True)
class Secretive(Good):
    """Keeps a secret in config."""

    judge_token: str = ""
    """What no run folder should hold."""


@dataclass(frozen=True)
class Slotted(Good):
    """Has a field that a slot has."""

    weight: float = 1.0
    """The kernel's own key."""


@dataclass(frozen=True)
class Unresolved(Good):
    """Has an annotation that exists for a type checker only."""

    precise: Decimal | None = None
    """A number nobody can check."""


@dataclass(frozen=True)
class Moody(Good):
    """Scores differently each time."""

    seen: ClassVar[list[int]] = []

    def __call__(self, attempt: Attempt) -> Score:
        self.seen.append(1)
        return Ok(float(len(self.seen)))


@dataclass(frozen=True)
class ZeroForNothing(Good):
    """Scores 0 where there is no gold answer."""

    def __call__(self, attempt: Attempt) -> Score:
        gold = attempt.task.answer if attempt.task else None
        return Ok(float(gold is not None and gold in attempt.text))


@dataclass(frozen=True)
class Fragile(Good):
    """Raises on text that holds no number."""

    def __call__(self, attempt: Attempt) -> Score:
        return Ok(float(attempt.text.split()[0] == "12"))


@dataclass(frozen=True)
class Endless(Good):
    """Never ends on some texts."""

    timeout_s: ClassVar[float] = 0.5

    def __call__(self, attempt: Attempt) -> Score:
        while attempt.text == "":
            pass
        return Ok(0.0)


@dataclass(frozen=True)
class Touchy(Good):
    """Writes on the attempt."""

    def __call__(self, attempt: Attempt) -> Score:
        attempt.info["touched"] = True
        return Ok(1.0)


@dataclass(frozen=True)
class Both(Good):
    """Scores one, and all."""

    def group(self, attempts: Any) -> list[Score]:
        return [Ok(0.0) for _ in attempts]


@dataclass(frozen=True)
class Silent(Good):
    """Never has a score."""

    def __call__(self, attempt: Attempt) -> Score:
        return Invalid("not today")


@dataclass(frozen=True)
class Files(Taskset):
    """Tasks of a file."""

    path: Path
    """One question a line."""

    @classmethod
    def example(cls, tmp: Path) -> Files:
        (tmp / "tasks.txt").write_text("one\ntwo\n")
        return cls(tmp / "tasks.txt")

    def __len__(self) -> int:
        return len(self.path.read_text().splitlines())

    def __getitem__(self, row: int) -> Task:
        return Task(f"files-{row}", ({"role": "user", "content": self.path.read_text().splitlines()[row]},))


@dataclass(frozen=True)
class NoExample(Taskset):
    """Needs a path and gives the kit none."""

    path: str
    """A file."""


@dataclass(frozen=True)
class Connected(Selector):
    """Its live half keeps state and a connection."""

    start: int = 0
    """First row."""
    loses: bool = False
    """Forget the state when loading."""

    def open(self, run: Any) -> LiveConnected:
        return LiveConnected(self)


@dataclass
class LiveConnected:
    config: Connected
    connection: Any = field(default_factory=lambda: sqlite3.connect(":memory:"))
    state: dict[str, Any] = field(default_factory=lambda: {"seen": np.arange(3), "nan": float("inf")})

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = {} if self.config.loses else state

    def close(self) -> None:
        self.connection.close()
