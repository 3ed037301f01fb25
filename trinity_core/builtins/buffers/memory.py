"""The ledger in the memory of one process: plain Python, the reference that other ledgers are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from trinity_core import codec
from trinity_core.builtins.buffers import common
from trinity_core.builtins.buffers.memory_gate import MemoryGate
from trinity_core.builtins.buffers.state import Row, State
from trinity_core.errors import LedgerError
from trinity_core.protocols import Buffer, Event, Ledger, Position, RunContext
from trinity_core.types import Entry, Group, Lease


@dataclass(frozen=True)
class MemoryBuffer(Buffer):
    """Keeps groups in the memory of this process. Fast and gone with the process: such a run cannot be resumed, joined by
    other processes, or audited later. For anything longer than an experiment take ``sql``."""

    shared: ClassVar[bool] = False

    def open(self, run: RunContext) -> Ledger:
        return MemoryLedger(State())


class MemoryLedger(MemoryGate):
    """A handle on a :class:`State`; several handles of one state meet like several processes would."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._max_uses = 1

    # lineage
    def begin(self, position: Position | None, *, ordered: bool) -> int:
        at = position or common.START
        with self._state.lock:
            s = self._state
            common.check_position(at, s.lineage, s.next_draw)
            s.lineage += 1
            self.lineage = s.lineage
            self._event(
                "", "lineage", at.step, f"from step {at.step}, draw {at.draw}, {'ordered' if ordered else 'async'}"
            )
            rows = self._sorted(s.rows.values())
            for row in rows:
                self._free(row, f"lineage {s.lineage} began")
            for row in rows:
                row.uses = [step for step in row.uses if step <= at.step]
                if row.status == "expired" and row.ended > at.step:
                    row.status = "stored"
            for row in rows:
                if ordered and row.draw >= at.draw and row.status != "voided":
                    row.status = "voided"
                    self._event(row.id, "voided", at.step, f"lineage {s.lineage} plays draw {row.draw} again")
                elif not ordered and row.status == "stored" and (row.version or 0) > at.step:
                    row.status, row.ended = "expired", at.step
                    self._event(row.id, "expired", at.step, common.did_not_survive(row.version, s.lineage))
            for place in s.places.values():
                reason = common.fell_back(place.draw, place.owner, f"lineage {s.lineage} began")
                self._event("", "voided", at.step, reason, place.owner)
            s.places.clear()
            if ordered:
                s.next_draw = at.draw
                s.begun = {v: min(draw, at.draw - 1) for v, draw in s.begun.items() if v < at.step}
                if at.draw:  # draws that stay, whatever version they were begun under
                    s.begun[at.step - 1] = at.draw - 1
            s.given_up, s.committed = at.given_up, at.step
            s.short = common.surviving(s.short, at.given_up)
            s.announced, s.receipts = {}, {}
            s.recount()
            return self.lineage

    def join(self) -> int:
        self.lineage = self._state.lineage
        return self.lineage

    def live_lineage(self) -> int:
        return self._state.lineage

    # groups
    def put(self, group: Group, *, place: str | None = None) -> bool:
        data = codec.pack(group)
        with self._write() as s:
            row = s.rows.get(group.id)
            if row is not None and row.status != "voided":
                s.places.pop(place or "", None)
                return False
            if place is not None:
                held = s.places.get(place)
                if held is None:
                    self._event(group.id, "voided", s.committed + 1, f"put too late: place {place} had fallen back")
                    raise common.place_lost(group.id, place)
                if held.draw != group.draw:
                    raise common.wrong_draw(group, held.draw)
                del s.places[place]
            sequence = self._event(group.id, "put", common.step_of(group))
            row = Row(group.id, group.draw, group.version, common.reward_of(group), group.slot, sequence, data)
            s.rows[group.id] = s.open[group.id] = row
            s.counted += 1
            return True

    def drop(
        self, group_id: str, event: Literal["filtered", "voided"], reason: str, *, place: str | None = None
    ) -> None:
        common.check_drop(event)
        with self._write() as s:
            row = s.rows.get(group_id)
            if row is not None and row.status != "voided":
                if self._leased(row):
                    raise common.cannot_lease([f"{group_id} is leased and cannot be dropped"])
                self._free(row, "its lease ended")
                s.counted -= row.counts
                row.status = "voided"
            s.places.pop(place or "", None)
            self._event(group_id, event, s.committed + 1, reason)

    def index(self, *, max_uses: int = 1) -> list[Entry]:
        with self._state.lock:
            s, self._max_uses = self._state, max_uses
            if max_uses > s.open_uses:
                s.open_uses = max_uses
                s.recount()
            for row in [row for row in s.open.values() if not s.is_open(row)]:
                del s.open[row.id]
            return [row.entry() for row in self._sorted(s.open.values()) if self._why_not(row) is None]

    def lease(self, group_ids: Sequence[str], *, owner: str, step: int, ttl_s: float) -> Lease:
        ids = common.check_ids(group_ids, "lease")
        with self._write() as s:
            self._known(ids)
            rows = [s.rows[i] for i in ids]
            if reasons := [why for row in rows if (why := self._why_not(row))]:
                raise common.cannot_lease(reasons)
            for row in rows:
                self._free(row, "its lease ended")
            first, *_ = [self._event(i, "leased", step, owner=owner) for i in ids]
            lease = Lease(common.lease_id(self.lineage, first), owner, step, tuple(ids))
            for row in rows:
                row.lease, row.until = lease, s.clock() + ttl_s
            return lease

    def renew(self, lease: Lease, ttl_s: float) -> None:
        with self._write() as s:
            for row in self._held(lease, "renewal"):
                row.until = s.clock() + ttl_s

    def commit(self, lease: Lease, step: int) -> None:
        with self._write() as s:
            rows = self._held(lease, "commit")
            for row in rows:
                if step in row.uses:
                    raise LedgerError(f"commit: step {step} has already trained group {row.id}")
            for row in rows:
                row.lease = None
                row.uses.append(step)
                self._event(row.id, "committed", step, owner=lease.owner)
            s.committed = max(s.committed, step)

    def release(self, lease: Lease) -> None:
        with self._write() as s:
            for i in lease.group_ids:
                row = s.rows.get(i)
                if row is not None and row.lease is not None and row.lease.id == lease.id:
                    self._free(row, "given back")

    def expire(self, group_ids: Sequence[str], reason: str) -> None:
        with self._write() as s:
            self._known(group_ids)
            rows = [s.rows[i] for i in dict.fromkeys(group_ids) if s.rows[i].status == "stored"]
            if leased := [row.id for row in rows if self._leased(row)]:
                raise common.cannot_lease([f"{i} is leased and cannot expire" for i in leased])
            for row in rows:
                self._free(row, "its lease ended")
            for row in rows:
                s.counted -= not row.uses
                row.status, row.ended = "expired", s.committed + 1
                self._event(row.id, "expired", s.committed + 1, reason)

    def read(self, group_ids: Sequence[str]) -> list[Group]:
        with self._state.lock:
            self._known(group_ids)
            stored = [(i, self._state.rows[i].data) for i in group_ids]
        return [common.restore(i, data) for i, data in stored]

    def events(self, after: int = 0) -> Iterator[Event]:
        with self._state.lock:
            return iter(self._state.history[after:])

    def entries(self) -> list[Entry]:
        with self._state.lock:
            return [row.entry() for row in self._sorted(self._state.rows.values())]

    # inside
    @staticmethod
    def _sorted(rows: Iterable[Row]) -> list[Row]:
        return sorted(rows, key=lambda row: (row.draw, row.sequence))

    def _known(self, group_ids: Sequence[str]) -> None:
        if missing := [i for i in group_ids if i not in self._state.rows]:
            raise common.unknown(missing)

    def _leased(self, row: Row) -> bool:
        return row.lease is not None and row.until > self._state.clock()

    def _why_not(self, row: Row) -> str | None:
        """Why ``row`` cannot be leased now."""
        if row.status != "stored":
            return f"{row.id} is {row.status}"
        if len(row.uses) >= self._max_uses:
            return f"{row.id} was used {len(row.uses)} times"
        return f"{row.id} is leased" if self._leased(row) else None

    def _held(self, lease: Lease, what: str) -> list[Row]:
        rows = [row for i in lease.group_ids if (row := self._state.rows.get(i))]
        if len(rows) != len(lease.group_ids) or any(row.lease is None or row.lease.id != lease.id for row in rows):
            raise common.lease_lost(lease, what)
        return rows

    def _free(self, row: Row, reason: str) -> None:
        if row.lease is not None:
            self._event(row.id, "released", row.lease.step, reason, row.lease.owner)
            row.lease = None
