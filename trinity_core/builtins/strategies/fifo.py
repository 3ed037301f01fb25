"""First in, first out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trinity_core.protocols import SampleStrategy
from trinity_core.types import Entry


@dataclass(frozen=True)
class Fifo(SampleStrategy):
    """The oldest groups first.

    Draw order is what deterministic runs need: the groups of a step are the same whatever finished first. In asynchronous
    runs ``version`` takes what would soon be too old before what is fresh.
    """

    order: Literal["draw", "version"] = "draw"
    """*draw*: by number of draw. *version*: by oldest version, then by draw; groups that nothing was sampled for come last."""

    def __call__(self, index: Sequence[Entry], n: int) -> list[str]:
        entries = sorted(index, key=lambda entry: (entry.draw, entry.sequence))
        if self.order == "version":
            entries.sort(key=lambda entry: (entry.version is None, entry.version or 0))
        return [entry.id for entry in entries[:n]]
