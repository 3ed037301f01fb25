"""A tracker that remembers what the terminal would have shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trinity_core.protocols import RunContext, Tracker

SEEN: list[tuple[str, dict[str, Any]]] = []


@dataclass(frozen=True)
class Watch(Tracker):
    """Asks for the progress at every event."""

    def open(self, run: RunContext) -> LiveWatch:
        return LiveWatch(run)


class LiveWatch(Tracker):
    def __init__(self, run: Any) -> None:
        self.run = run

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        SEEN.append(("step", self.run.progress(0.0)))

    def evaluated(self, step: int, taskset: str, result: Mapping[str, Any]) -> None:
        SEEN.append(("evaluated", self.run.progress(0.0)))

    def checkpointed(self, step: int, path: str) -> None:
        SEEN.append(("checkpointed", self.run.progress(0.0)))
