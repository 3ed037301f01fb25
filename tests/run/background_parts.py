"""Backends whose checkpoints take their time, or fail on the way."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from trinity_core.builtins.backends.fake import Fake
from trinity_core.errors import RunError
from trinity_core.protocols import RunContext, Tracker

WRITING: list[int] = []
"""How many checkpoints were being written, each time one began."""
_lock = threading.Lock()
_now = 0


@dataclass(frozen=True)
class Slow(Fake):
    """A disk that takes ``seconds`` for each checkpoint."""

    seconds: float = 0.3

    def open(self, run: RunContext) -> Any:
        live = super().open(run)
        copy = live.snapshot

        def snapshot() -> Any:
            write = copy()

            def slowly(folder: Any) -> None:
                global _now
                with _lock:
                    _now += 1
                    WRITING.append(_now)
                time.sleep(self.seconds)
                write(folder)
                with _lock:
                    _now -= 1

            return slowly

        live.snapshot = snapshot  # type: ignore[method-assign]
        return live


@dataclass(frozen=True)
class Full(Fake):
    """A disk that is full after ``good`` checkpoints."""

    good: int = 1

    def open(self, run: RunContext) -> Any:
        live = super().open(run)
        copy, taken = live.snapshot, 0

        def snapshot() -> Any:
            nonlocal taken
            taken += 1

            def fail(folder: Any) -> None:
                (folder / "half").write_bytes(b"half of it")
                raise OSError(28, "No space left on device")

            return copy() if taken <= self.good else fail

        live.snapshot = snapshot  # type: ignore[method-assign]
        return live


@dataclass(frozen=True)
class EndsAtTwo(Tracker):
    """Ends the run at its second step."""

    def step(self, step: int, metrics: Any) -> None:
        if step == 2:
            raise RunError("on purpose")
