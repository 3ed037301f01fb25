"""The gate: how far play may run ahead of training.

A draw may start while ``taken < (allowed(v) + 1) * groups_per_step``, where ``v`` is the version that the engine which
would play it has acknowledged. Explorer and trainer meet only here and in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass

from trinity_core.config.schema import Sync


@dataclass(frozen=True)
class Gate:
    """Counts places; holds no state of its own (the ledger does)."""

    sync: Sync
    groups_per_step: int
    last_step: int | None = None
    """asynchronous runs start no draw for steps after this one. Ordered runs do: what is played ahead of the last step
    is what a resumed run trains next."""
    alone: bool = False
    """An explorer without a trainer: it plays every step's groups with the version it starts with."""
    steps_ahead: bool = False
    """Whether a step may be filled while draws of it are in flight (groups used again, groups that operators add)."""

    @property
    def ordered(self) -> bool:
        return self.sync.mode == "ordered"

    def allowed(self, version: int) -> int:
        """The last step (counted from 0) whose groups may be played with ``version``."""
        if not self.ordered:
            return version + self.sync.max_staleness
        interval = self.sync.interval
        return interval * (version // interval) + interval - 1 + self.sync.offset

    def limit(self, version: int) -> int:
        """Places that may be taken while the engine holds ``version``."""
        if self.alone and self.last_step is not None:
            return self.last_step * self.groups_per_step if version >= 0 else 0
        limit = (self.allowed(version) + 1) * self.groups_per_step
        if not self.ordered and self.last_step is not None:
            limit = min(limit, self.last_step * self.groups_per_step)
        return limit

    def version_for(self, taken: int) -> int:
        """The earliest version under which the next draw may start, when ``taken`` places are taken.

        Ordered runs load exactly this version, never a later one: which weights played a group must not depend on timing.
        """
        step = taken // self.groups_per_step
        if not self.ordered:
            return max(0, step - self.sync.max_staleness)
        interval = self.sync.interval
        return interval * max(0, (step - self.sync.offset) // interval)

    def delivers(self, step: int) -> bool:
        """Whether version ``step`` is ever played: ordered runs with an interval skip those in between."""
        return not self.ordered or self.alone or step % self.sync.interval == 0

    @property
    def overlaps(self) -> bool:
        """Whether sampling may go on while weights change: then a shared module is not allowed."""
        return not self.ordered or self.sync.offset > 0 or self.sync.interval > 1 or self.steps_ahead
