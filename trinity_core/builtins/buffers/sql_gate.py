"""The gate and the meeting, over SQL."""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table, bindparam

from trinity_core.builtins.buffers import common, tables
from trinity_core.builtins.buffers.store import Store, Write
from trinity_core.protocols import Ledger, Opening, Position

P, B, M = tables.places.c, tables.begun.c, tables.meta.c
A, R, W = tables.announced.c, tables.receipts.c, tables.words.c
# Statements are built once: building one takes several times as long as running it.
_RUN: sa.BindParameter[str] = bindparam("r")
_ALIVE = sa.select(sa.func.count()).select_from(tables.places).where(P.run == _RUN, P.until > bindparam("now"))
_LAPSED = (
    sa.select(P.place, P.draw, P.owner)
    .where(P.run == _RUN, P.until <= bindparam("now"), P.owner != bindparam("o"))
    .order_by(P.draw)
)
_END_PLACE = sa.delete(tables.places).where(P.run == _RUN, P.place == bindparam("p"))
_RENEW = sa.update(tables.places).where(P.run == _RUN, P.owner == bindparam("o")).values(until=bindparam("t"))
_EXTEND = _RENEW.where(P.until < bindparam("t"))
_ENTER = sa.insert(tables.places)
_ALIVE_BEFORE = _ALIVE.where(P.version < bindparam("v"))
_LOWEST = sa.select(sa.func.min(P.draw)).where(P.run == _RUN, P.until > bindparam("now"))
_COUNTED = sa.select(M.counted + M.given_up).where(M.run == _RUN)
_GIVEN_UP = sa.select(M.given_up).where(M.run == _RUN)
_LIVE = sa.select(M.lineage).where(M.run == _RUN)
_LAST_DRAW = sa.select(sa.func.max(B.draw)).where(B.run == _RUN, B.version < bindparam("v"))
_NEWEST = (
    sa.select(A.version, A.location)
    .where(A.run == _RUN, A.lineage == _LIVE.scalar_subquery())
    .order_by(A.version.desc())
    .limit(1)
)
_RECEIPTS = sa.select(R.engine, R.version).where(R.run == _RUN, R.lineage == _LIVE.scalar_subquery())
_HEARD = sa.select(W.said).where(W.run == _RUN, W.word == bindparam("w"))


SHORT = "short:"
"""Prefix of the words that say how many places a step gave up."""


class SqlGate(Ledger):
    """The half of the SQL ledger that is not about groups."""

    def __init__(self, store: Store) -> None:
        self.lineage = 0
        self._store = store
        self._run = {"r": store.run}

    # the gate
    def taken(self) -> int:
        with self._store.read() as connection:
            return int(connection.execute(_COUNTED, self._run).scalar_one()) + self._alive(connection)

    def filled(self) -> int:
        with self._store.read() as connection:
            return int(connection.execute(_COUNTED, self._run).scalar_one())

    def enter(self, owner: str, n: int, limit: int, *, version: int, ttl_s: float) -> list[Opening]:
        with self._store.write(self.lineage) as write:
            until = write.now + ttl_s
            write(_EXTEND, {**self._run, "o": owner, "t": until})
            for place, draw, holder in write(_LAPSED, {**self._run, "now": write.now, "o": owner}).all():
                write(_END_PLACE, {**self._run, "p": place})
                reason = common.fell_back(draw, holder, "silent too long")
                write.event("", "voided", write.meta.committed + 1, reason, holder)
            alive = int(write(_ALIVE, {**self._run, "now": write.now}).scalar_one())
            first = write.meta.next_draw
            count = max(0, min(n, limit - alive - write.meta.counted - write.meta.given_up))
            openings = [
                Opening(draw, common.place_id(self.lineage, draw), version) for draw in range(first, first + count)
            ]
            if openings:
                rows = [
                    {"run": self._store.run, "place": o.place, "draw": o.draw, "owner": owner, "version": version, "until": until}
                    for o in openings
                ]  # fmt: skip
                write(_ENTER, rows)
                self._upsert(write, tables.begun, {"version": version}, {"draw": openings[-1].draw})
                write.meta.next_draw += count
            return openings

    def renew_places(self, owner: str, ttl_s: float) -> None:
        with self._store.write(self.lineage) as write:
            write(_RENEW, {**self._run, "o": owner, "t": write.now + ttl_s})

    def leave(self, place: str) -> None:
        with self._store.write(self.lineage) as write:
            write(_END_PLACE, {**self._run, "p": place})

    def in_flight(self, *, before_version: int | None = None) -> int:
        with self._store.read() as connection:
            return self._alive(connection, before_version)

    def first_in_flight(self) -> int | None:
        """The lowest draw in flight: in an ordered run groups of later draws wait for it."""
        with self._store.read() as connection:
            draw = connection.execute(_LOWEST, {**self._run, "now": self._store.now(connection)}).scalar_one()
            return None if draw is None else int(draw)

    def give_up(self, places: int, step: int, reason: str, *, taken: int | None = None) -> bool:
        with self._store.write(self.lineage) as write:
            alive = int(write(_ALIVE, {**self._run, "now": write.now}).scalar_one())
            if taken is not None and alive + write.meta.counted + write.meta.given_up != taken:
                return False
            write.meta.given_up += places
            total = self._shorts(write.connection).get(step, 0) + places
            self._upsert(write, tables.words, {"word": f"{SHORT}{step}"}, {"said": str(total)})
            write.event("", "given_up", step, f"{places} places: {reason}")
            return True

    def short(self, step: int) -> int:
        return int(self.heard(f"{SHORT}{step}") or 0)

    def position(self, step: int) -> Position:
        with self._store.read() as connection:
            draw = connection.execute(_LAST_DRAW, {**self._run, "v": step}).scalar_one()
            given_up = connection.execute(_GIVEN_UP, self._run).scalar_one()
            position = Position(step, 0 if draw is None else int(draw) + 1, int(given_up))
        self._store.flush()  # what a checkpoint refers to must outlive a power cut like the checkpoint itself
        return position

    # the meeting
    def live_lineage(self) -> int:
        with self._store.read() as connection:
            return int(connection.execute(_LIVE, self._run).scalar_one())

    def announce(self, version: int, where: str) -> None:
        with self._store.write(self.lineage) as write:
            self._upsert(write, tables.announced, {"lineage": self.lineage, "version": version}, {"location": where})

    def newest(self) -> tuple[int, str] | None:
        with self._store.read() as connection:
            row = connection.execute(_NEWEST, self._run).first()
            return None if row is None else (int(row.version), str(row.location))

    def acknowledge(self, engine: str, version: int, evidence: str) -> None:
        with self._store.write(self.lineage) as write:
            values = {"version": version, "evidence": evidence}
            self._upsert(write, tables.receipts, {"lineage": self.lineage, "engine": engine}, values)

    def acknowledged(self) -> dict[str, int]:
        with self._store.read() as connection:
            return {row.engine: int(row.version) for row in sorted(connection.execute(_RECEIPTS, self._run))}

    def say(self, key: str, value: str) -> None:
        with self._store.write(self.lineage) as write:
            self._upsert(write, tables.words, {"word": key}, {"said": value})

    def heard(self, key: str) -> str | None:
        with self._store.read() as connection:
            said = connection.execute(_HEARD, {**self._run, "w": key}).scalar()
            return None if said is None else str(said)

    def close(self) -> None:
        self._store.close()

    # inside
    def _shorts(self, connection: Connection) -> dict[int, int]:
        """Places that each step gave up."""
        query = sa.select(W.word, W.said).where(W.run == _RUN, W.word.startswith(SHORT))
        return {int(row.word.removeprefix(SHORT)): int(row.said) for row in connection.execute(query, self._run)}

    def _alive(self, connection: Connection, before_version: int | None = None) -> int:
        values: dict[str, Any] = {**self._run, "now": self._store.now(connection)}
        if before_version is not None:
            return int(connection.execute(_ALIVE_BEFORE, {**values, "v": before_version}).scalar_one())
        return int(connection.execute(_ALIVE, values).scalar_one())

    def _upsert(self, write: Write, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
        """Update, else insert: the lock on the run's row keeps others out in between."""
        update, insert = _upserting(table, tuple(key), tuple(values))
        named = {f"is_{name}": value for name, value in key.items()}
        if write(update, {**self._run, **named, **values}).rowcount == 0:
            write(insert, {"run": self._store.run, **key, **values})


@cache
def _upserting(table: Table, key: tuple[str, ...], values: tuple[str, ...]) -> tuple[sa.Update, sa.Insert]:
    same = [table.c[name] == bindparam(f"is_{name}") for name in key]
    update = sa.update(table).where(table.c.run == _RUN, *same)
    return update.values({name: bindparam(name) for name in values}), sa.insert(table)
