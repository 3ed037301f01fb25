"""Groups, leases and lineages over SQL. Semantics are those of :mod:`trinity_core.builtins.buffers.memory`, rule by rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Row

from trinity_core import codec
from trinity_core.builtins.buffers import common, tables
from trinity_core.builtins.buffers import sql_statements as sql
from trinity_core.builtins.buffers.sql_gate import _END_PLACE, _RUN, SHORT, SqlGate
from trinity_core.builtins.buffers.store import Store, Write
from trinity_core.errors import LeaseLost, LedgerError
from trinity_core.protocols import Event, Position
from trinity_core.types import Entry, Group, Lease

G, P, U = tables.groups.c, tables.places.c, tables.uses.c
_CHUNK = 500
"""Ids in one statement: old versions of SQLite take 999 values."""


class SqlLedger(SqlGate):
    """A handle on one run's ledger in a database."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._max_uses = 1

    # lineage
    def begin(self, position: Position | None, *, ordered: bool) -> int:
        at = position or common.START
        mine = G.run == self._store.run
        with self._store.write(None) as write:
            meta = write.meta
            common.check_position(at, meta.lineage, meta.next_draw)
            meta.lineage += 1
            why = f"lineage {meta.lineage} began"
            write.event(
                "", "lineage", at.step, f"from step {at.step}, draw {at.draw}, {'ordered' if ordered else 'async'}"
            )
            leased = sa.select(G.id, G.step, G.owner).where(mine, G.lease.is_not(None)).order_by(*sql.ORDER)
            self._free(write, write(leased).all(), why)
            lost = [row.id for row in write(sa.select(U.id).where(U.run == self._store.run, U.step > at.step))]
            for group_id in lost:
                write(sa.update(tables.groups).where(mine, G.id == group_id).values(uses=G.uses - 1))
            write(sa.delete(tables.uses).where(U.run == self._store.run, U.step > at.step))
            again = sa.update(tables.groups).where(mine, G.status == "expired", G.ended > at.step)
            write(again.values(status="stored"))
            if ordered:
                behind = (mine, G.draw >= at.draw, G.status != "voided")
                for row in write(sa.select(G.id, G.draw).where(*behind).order_by(*sql.ORDER)).all():
                    write.event(row.id, "voided", at.step, f"lineage {meta.lineage} plays draw {row.draw} again")
                write(sa.update(tables.groups).where(*behind).values(status="voided"))
            else:
                dead = (mine, G.version > at.step, G.status == "stored")
                for row in write(sa.select(G.id, G.version).where(*dead).order_by(*sql.ORDER)).all():
                    write.event(row.id, "expired", at.step, common.did_not_survive(row.version, meta.lineage))
                write(sa.update(tables.groups).where(*dead).values(status="expired", ended=at.step))
            open_places = sa.select(P.draw, P.owner).where(P.run == self._store.run).order_by(P.draw)
            for row in write(open_places).all():
                write.event("", "voided", at.step, common.fell_back(row.draw, row.owner, why), row.owner)
            write(sa.delete(tables.places).where(P.run == self._store.run))
            if ordered:
                meta.next_draw = at.draw
                B = tables.begun.c
                of_run = B.run == self._store.run
                write(sa.delete(tables.begun).where(of_run, B.version >= at.step))
                write(sa.update(tables.begun).where(of_run, B.draw >= at.draw).values(draw=at.draw - 1))
                if at.draw:  # draws that stay, whatever version they were begun under
                    self._upsert(write, tables.begun, {"version": at.step - 1}, {"draw": at.draw - 1})
            counts = sa.or_(G.status == "stored", sa.and_(G.status == "expired", G.uses > 0))
            meta.counted = int(
                write(sa.select(sa.func.count()).select_from(tables.groups).where(mine, counts)).scalar_one()
            )
            meta.given_up, meta.committed = at.given_up, at.step
            shorts = self._shorts(write.connection)
            kept = common.surviving(shorts, at.given_up)
            for step in shorts:
                self._upsert(write, tables.words, {"word": f"{SHORT}{step}"}, {"said": str(kept.get(step, 0))})
            lineage = meta.lineage
        self.lineage = lineage
        return lineage

    def join(self) -> int:
        self.lineage = self.live_lineage()
        return self.lineage

    # groups
    def put(self, group: Group, *, place: str | None = None) -> bool:
        [stored] = self.put_all([(group, place)])
        if isinstance(stored, LeaseLost):
            raise stored
        return stored

    def put_all(self, groups: Sequence[tuple[Group, str | None]]) -> list[bool | LeaseLost]:
        packed = [codec.pack(group) for group, _ in groups]
        answers: list[bool | LeaseLost] = []
        if not groups:
            return answers
        with self._store.write(self.lineage) as write:
            known: dict[str, str] = {}
            draws: dict[str, int] = {}
            for part in _chunks([group.id for group, _ in groups]):
                known.update(row[:2] for row in write(sql.KNOWN, {**self._run, "ids": part}))
            for part in _chunks([place for _, place in groups if place is not None]):
                draws.update(tuple(row) for row in write(sql.DRAWS, {**self._run, "ids": part}))
            ended: list[str] = []
            rows: list[dict[str, Any]] = []
            payloads: list[dict[str, Any]] = []
            for (group, place), data in zip(groups, packed):
                if known.get(group.id, "voided") != "voided":
                    ended += [] if place is None else [place]
                    answers.append(False)
                    continue
                draw = group.draw if place is None else draws.pop(place, None)
                if draw is None:
                    reason = f"put too late: place {place} had fallen back"
                    write.event(group.id, "voided", write.meta.committed + 1, reason)
                    answers.append(common.place_lost(group.id, place or ""))
                    continue
                if draw != group.draw:
                    raise common.wrong_draw(group, draw)
                ended += [] if place is None else [place]
                row = self._row(group, write.event(group.id, "put", common.step_of(group)))
                if group.id in known:
                    self._again(write, row, data)
                else:
                    rows.append(row)
                    payloads.append({"run": row["run"], "id": row["id"], "data": data})
                known[group.id] = "stored"
                write.meta.counted += 1
                answers.append(True)
            if ended:
                write(_END_PLACE, [{**self._run, "p": place} for place in ended])
            if rows:
                write(sql.PUT, rows)
                write(sql.PUT_DATA, payloads)
        return answers

    def _row(self, group: Group, sequence: int) -> dict[str, Any]:
        return {
            "run": self._store.run,
            "id": group.id,
            "draw": group.draw,
            "version": group.version,
            "reward": common.reward_of(group),
            "source": group.slot,
            "sequence": sequence,
            "status": "stored",
            "ended": 0,
            "uses": 0,
            **sql.FREE,
        }

    def _again(self, write: Write, row: dict[str, Any], data: bytes) -> None:
        """Store a group under the id of one that was voided."""
        which = {**self._run, "i": row["id"]}
        write(sa.delete(tables.uses).where(U.run == self._store.run, U.id == row["id"]))
        write(sql.AGAIN.values(row), which)
        write(sql.AGAIN_DATA.values(data=data), which)

    def drop(
        self, group_id: str, event: Literal["filtered", "voided"], reason: str, *, place: str | None = None
    ) -> None:
        common.check_drop(event)
        with self._store.write(self.lineage) as write:
            which = {**self._run, "i": group_id, "p": place}
            found = write(sql.KNOWN, {**self._run, "ids": [group_id]}).first()
            if found is not None and found.status != "voided":
                if found.lease is not None and found.until > write.now:
                    raise common.cannot_lease([f"{group_id} is leased and cannot be dropped"])
                self._free(write, [found] if found.lease is not None else [], "its lease ended")
                write.meta.counted -= found.status == "stored" or found.uses > 0
                write(sql.AGAIN.values(status="voided"), which)
            if place is not None:
                write(_END_PLACE, which)
            write.event(group_id, event, write.meta.committed + 1, reason)

    def index(self, *, max_uses: int = 1) -> list[Entry]:
        self._max_uses = max_uses
        with self._store.read() as connection:
            values = {**self._run, "max_uses": max_uses, "now": self._store.now(connection)}
            return [Entry(*row) for row in connection.execute(sql.READY, values)]

    def lease(self, group_ids: Sequence[str], *, owner: str, step: int, ttl_s: float) -> Lease:
        ids = common.check_ids(group_ids, "lease")
        with self._store.write(self.lineage) as write:
            rows = self._known(write, ids)
            if reasons := [why for row in rows if (why := self._why_not(row, write.now))]:
                raise common.cannot_lease(reasons)
            self._free(write, [row for row in rows if row.lease is not None], "its lease ended")
            first, *_ = [write.event(i, "leased", step, owner=owner) for i in ids]
            lease = Lease(common.lease_id(self.lineage, first), owner, step, tuple(ids))
            held = {"lease": lease.id, "owner": owner, "step": step, "until": write.now + ttl_s}
            self._update(write, sql.HOLD, ids, held)
            return lease

    def renew(self, lease: Lease, ttl_s: float) -> None:
        with self._store.write(self.lineage) as write:
            self._held(write, lease, "renewal")
            self._update(write, sql.EXTEND, lease.group_ids, {"until": write.now + ttl_s})

    def commit(self, lease: Lease, step: int) -> None:
        with self._store.write(self.lineage) as write:
            self._held(write, lease, "commit")
            for part in _chunks(lease.group_ids):
                if (row := write(sql.TRAINED, {**self._run, "s": step, "ids": part}).first()) is not None:
                    raise LedgerError(f"commit: step {step} has already trained group {row.id}")
            write(sql.USE, [{"run": self._store.run, "id": i, "step": step} for i in lease.group_ids])
            self._update(write, sql.COMMIT, lease.group_ids)
            for i in lease.group_ids:
                write.event(i, "committed", step, owner=lease.owner)
            write.meta.committed = max(write.meta.committed, step)

    def release(self, lease: Lease) -> None:
        with self._store.write(self.lineage) as write:
            held = {row.id for row in write(sql.OF_LEASE, {**self._run, "l": lease.id})}
            rows = [row for row in self._known(write, lease.group_ids) if row.id in held]
            self._free(write, rows, "given back")

    def expire(self, group_ids: Sequence[str], reason: str) -> None:
        with self._store.write(self.lineage) as write:
            rows = [row for row in self._known(write, list(dict.fromkeys(group_ids))) if row.status == "stored"]
            if leased := [row.id for row in rows if row.lease is not None and row.until > write.now]:
                raise common.cannot_lease([f"{i} is leased and cannot expire" for i in leased])
            self._free(write, [row for row in rows if row.lease is not None], "its lease ended")
            step = write.meta.committed + 1
            self._update(write, sql.EXPIRE, [row.id for row in rows], {"ended": step})
            for row in rows:
                write.event(row.id, "expired", step, reason)
                write.meta.counted -= row.uses == 0

    def read(self, group_ids: Sequence[str]) -> list[Group]:
        stored: dict[str, bytes] = {}
        with self._store.read() as connection:
            for part in _chunks(group_ids):
                rows = connection.execute(sql.DATA, {**self._run, "ids": part})
                stored.update((row.id, bytes(row.data)) for row in rows)
        if missing := [i for i in group_ids if i not in stored]:
            raise common.unknown(missing)
        return [common.restore(i, stored[i]) for i in group_ids]

    def events(self, after: int = 0) -> Iterator[Event]:
        while True:
            with self._store.read() as connection:
                page = connection.execute(sql.EVENTS, {**self._run, "after": after}).all()
            yield from (Event(*row) for row in page)
            if len(page) < sql.PAGE:
                return
            after = page[-1].sequence

    def entries(self) -> list[Entry]:
        with self._store.read() as connection:
            return [Entry(*row) for row in connection.execute(sql.ENTRIES, self._run)]

    def groups(self, *, before_draw: int | None = None) -> Iterator[Group]:
        """Every group that was not voided, in order of draw; with ``before_draw`` only those of earlier draws."""
        query = sa.select(G.id).where(G.run == _RUN, G.status != "voided").order_by(*sql.ORDER)
        with self._store.read() as connection:
            chosen = query if before_draw is None else query.where(G.draw < before_draw)
            ids = [row.id for row in connection.execute(chosen, self._run)]
        for part in _chunks(ids):
            yield from self.read(part)

    # inside
    def _known(self, write: Write, group_ids: Sequence[str]) -> list[Row[Any]]:
        """Rows of these groups, in the order asked for."""
        found: dict[str, Row[Any]] = {}
        for part in _chunks(group_ids):
            found.update((row.id, row) for row in write(sql.KNOWN, {**self._run, "ids": part}))
        if missing := [i for i in group_ids if i not in found]:
            raise common.unknown(missing)
        return [found[i] for i in group_ids]

    def _why_not(self, row: Row[Any], now: float) -> str | None:
        """Why a group cannot be leased now."""
        if row.status != "stored":
            return f"{row.id} is {row.status}"
        if row.uses >= self._max_uses:
            return f"{row.id} was used {row.uses} times"
        return f"{row.id} is leased" if row.lease is not None and row.until > now else None

    def _held(self, write: Write, lease: Lease, what: str) -> None:
        held = {row.id for row in write(sql.OF_LEASE, {**self._run, "l": lease.id})}
        if held != set(lease.group_ids):
            raise common.lease_lost(lease, what)

    def _free(self, write: Write, rows: Sequence[Row[Any]], reason: str) -> None:
        self._update(write, sql.RELEASE, [row.id for row in rows])
        for row in rows:
            write.event(row.id, "released", row.step, reason, row.owner)

    def _update(
        self, write: Write, change: sa.Update, group_ids: Sequence[str], values: Mapping[str, Any] = {}
    ) -> None:
        for part in _chunks(group_ids):
            write(change, {**self._run, **values, "ids": part})


def _chunks(group_ids: Sequence[str]) -> Iterator[list[str]]:
    ids = list(group_ids)
    return (ids[i : i + _CHUNK] for i in range(0, len(ids), _CHUNK))
