"""What a ledger in memory consists of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trinity_core.builtins.buffers.common import Status
from trinity_core.protocols import Event
from trinity_core.types import Entry, Lease


@dataclass
class Row:
    """One stored group. The group itself is packed: what a reader gets is its own."""

    id: str
    draw: int
    version: int | None
    reward: float | None
    source: str
    sequence: int
    data: bytes
    status: Status = "stored"
    ended: int = 0
    """The step that was in the making when it expired."""
    uses: list[int] = field(default_factory=list)
    """Steps that trained it."""
    lease: Lease | None = None
    until: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether it takes a place."""
        return self.status == "stored" or (self.status == "expired" and bool(self.uses))

    def entry(self) -> Entry:
        return Entry(self.id, self.draw, self.version, len(self.uses), self.reward, self.source, self.sequence)


@dataclass
class Place:
    draw: int
    owner: str
    version: int
    until: float


@dataclass
class State:
    """What all handles of one ledger share."""

    clock: Callable[[], float] = time.monotonic
    lock: Any = field(default_factory=threading.RLock)
    lineage: int = 0
    next_draw: int = 0
    committed: int = 0
    """Last step committed in what survived."""
    given_up: int = 0
    counted: int = 0
    """Groups that take a place."""
    rows: dict[str, Row] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    """Last draw begun under each version."""
    history: list[Event] = field(default_factory=list)
    announced: dict[int, str] = field(default_factory=dict)
    receipts: dict[str, tuple[int, str]] = field(default_factory=dict)
    short: dict[int, int] = field(default_factory=dict)
    """Places that each step gave up."""
    words: dict[str, str] = field(default_factory=dict)
    open: dict[str, Row] = field(default_factory=dict)
    """Among these are all stored groups of fewer than ``open_uses`` uses: a look at the index passes over no others."""
    open_uses: int = 1

    def recount(self) -> None:
        """After many groups changed at once: what takes a place, and what is open."""
        self.counted = sum(row.counts for row in self.rows.values())
        self.open = {row.id: row for row in self.rows.values() if self.is_open(row)}

    def is_open(self, row: Row) -> bool:
        return row.status == "stored" and len(row.uses) < self.open_uses
