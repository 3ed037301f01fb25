"""The gate and the meeting, over SQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table, bindparam

from trinity_core.builtins.buffers import common, tables
from trinity_core.builtins.buffers.store import Store, Write
from trinity_core.protocols import Ledger, Opening, Position

P, B = tables.places.c, tables.begun.c
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
        M = tables.meta.c
        with self._store.read() as connection:
            counted = sa.select(M.counted + M.given_up).where(M.run == _RUN)
            return int(connection.execute(counted, self._run).scalar_one()) + self._alive(connection)

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
                write(sa.insert(tables.places), rows)
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
            now = self._store.now(connection)
            lowest = sa.select(sa.func.min(P.draw)).where(P.run == _RUN, P.until > now)
            draw = connection.execute(lowest, self._run).scalar_one()
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
            last = sa.select(sa.func.max(B.draw)).where(B.run == _RUN, B.version < step)
            draw = connection.execute(last, self._run).scalar_one()
            given_up = connection.execute(sa.select(tables.meta.c.given_up).where(tables.meta.c.run == _RUN), self._run)
            position = Position(step, 0 if draw is None else int(draw) + 1, int(given_up.scalar_one()))
        self._store.flush()  # what a checkpoint refers to must outlive a power cut like the checkpoint itself
        return position

    # the meeting
    def live_lineage(self) -> int:
        with self._store.read() as connection:
            query = sa.select(tables.meta.c.lineage).where(tables.meta.c.run == _RUN)
            return int(connection.execute(query, self._run).scalar_one())

    def announce(self, version: int, where: str) -> None:
        with self._store.write(self.lineage) as write:
            self._upsert(write, tables.announced, {"lineage": self.lineage, "version": version}, {"location": where})

    def newest(self) -> tuple[int, str] | None:
        A = tables.announced.c
        with self._store.read() as connection:
            query = sa.select(A.version, A.location).where(A.run == _RUN, A.lineage == _live(), A.run == _RUN)
            row = connection.execute(query.order_by(A.version.desc()).limit(1), self._run).first()
            return None if row is None else (int(row.version), str(row.location))

    def acknowledge(self, engine: str, version: int, evidence: str) -> None:
        with self._store.write(self.lineage) as write:
            values = {"version": version, "evidence": evidence}
            self._upsert(write, tables.receipts, {"lineage": self.lineage, "engine": engine}, values)

    def acknowledged(self) -> dict[str, int]:
        R = tables.receipts.c
        with self._store.read() as connection:
            query = sa.select(R.engine, R.version).where(R.run == _RUN, R.lineage == _live())
            return {row.engine: int(row.version) for row in sorted(connection.execute(query, self._run))}

    def say(self, key: str, value: str) -> None:
        with self._store.write(self.lineage) as write:
            self._upsert(write, tables.words, {"word": key}, {"said": value})

    def heard(self, key: str) -> str | None:
        W = tables.words.c
        with self._store.read() as connection:
            query = sa.select(W.said).where(W.run == _RUN, W.word == bindparam("w"))
            said = connection.execute(query, {**self._run, "w": key}).scalar()
            return None if said is None else str(said)

    def close(self) -> None:
        self._store.close()

    # inside
    def _shorts(self, connection: Connection) -> dict[int, int]:
        """Places that each step gave up."""
        W = tables.words.c
        query = sa.select(W.word, W.said).where(W.run == _RUN, W.word.startswith(SHORT))
        return {int(row.word.removeprefix(SHORT)): int(row.said) for row in connection.execute(query, self._run)}

    def _alive(self, connection: Connection, before_version: int | None = None) -> int:
        values: dict[str, Any] = {**self._run, "now": self._store.now(connection)}
        query = _ALIVE if before_version is None else _ALIVE.where(P.version < before_version)
        return int(connection.execute(query, values).scalar_one())

    def _upsert(self, write: Write, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
        """Update, else insert: the lock on the run's row keeps others out in between."""
        same = [table.c[name] == value for name, value in key.items()]
        updated = write(sa.update(table).where(table.c.run == self._store.run, *same).values(values))
        if updated.rowcount == 0:
            write(sa.insert(table), {"run": self._store.run, **key, **values})


def _live() -> Any:
    return sa.select(tables.meta.c.lineage).where(tables.meta.c.run == _RUN).scalar_subquery()
