"""Transactions of the SQL ledger, the same over SQLite, PostgreSQL and MariaDB.

Every write locks the run's row in ``meta`` first (SQLite: the whole file), so writes of all processes happen one after the
other, and what one of them decides is still true when it commits.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from trinity_core.builtins.buffers import common, tables
from trinity_core.errors import LedgerError

_META = ("lineage", "sequence", "next_draw", "committed", "given_up", "counted")
_WRITES = "trinity_writes"
_ADD_EVENT = sa.insert(tables.events)


@dataclass
class Meta:
    """The run's row: the fence and the counters."""

    lineage: int
    sequence: int
    next_draw: int
    committed: int
    given_up: int
    counted: int
    """Groups that take a place."""


class Write:
    """One write transaction. ``meta`` may be changed; events and meta are written when it ends."""

    def __init__(self, connection: Connection, run: str, meta: Meta, now: float) -> None:
        self.connection = connection
        self.run = run
        self.meta = meta
        self.now = now
        """Seconds, by the database's clock."""
        self.events: list[dict[str, Any]] = []

    def __call__(self, statement: Any, values: Any = None) -> sa.CursorResult[Any]:
        return self.connection.execute(statement, values)

    def event(self, group: str, name: str, step: int, reason: str = "", owner: str = "") -> int:
        self.meta.sequence += 1
        self.events.append(
            {
                "run": self.run,
                "sequence": self.meta.sequence,
                "group_id": group,
                "event": name,
                "step": step,
                "lineage": self.meta.lineage,
                "reason": common.clean(reason),
                "owner": common.clean(owner),
            }
        )
        return self.meta.sequence


class Store:
    """A database and one run in it. ``where`` names it in messages (no password)."""

    def __init__(self, url: URL, run: str, *, timeout_s: float, create: bool) -> None:
        self.run = run
        self.where = url.database or str(url) if url.get_backend_name() == "sqlite" else url.render_as_string()
        self.dialect = url.get_backend_name()
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._writer: Connection | None = None
        self._engine: sa.Engine | None = _engine(url, timeout_s, create, self.where)
        table = tables.meta
        chosen = sa.select(*(table.c[name] for name in _META)).where(table.c.run == sa.bindparam("r"))
        epoch = "extract(epoch from clock_timestamp())" if self.dialect == "postgresql" else "unix_timestamp(now(6))"
        self._clock: sa.Label[Any] = sa.literal_column(epoch).label("now")
        if self.dialect != "sqlite":
            chosen = chosen.add_columns(self._clock).with_for_update()
        self._get_meta = chosen
        self._set_meta = sa.update(table).where(table.c.run == sa.bindparam("r"))
        with self._translated():
            if create:
                self._create()
            self._check_format(create)

    # transactions
    @contextmanager
    def write(self, held: int | None) -> Iterator[Write]:
        """A write under lineage ``held`` (``None``: whatever it is, for ``begin``). An exception rolls it back."""
        if not self._lock.acquire(timeout=self.timeout_s):
            raise LedgerError(
                f"{self.where}: another thread has been writing for {self.timeout_s:g} s. Raise buffer.timeout_s"
            )
        try:
            with self._translated():
                write = self._start()
                try:
                    if held is not None:
                        common.check_fence(held, write.meta.lineage)
                    yield write
                    if write.events:
                        write(_ADD_EVENT, write.events)
                    write(self._set_meta, {"r": self.run, **vars(write.meta)})
                except BaseException:
                    write.connection.rollback()
                    raise
                write.connection.commit()
        except LedgerError:
            raise
        finally:
            self._lock.release()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view of the database."""
        with self._translated(), self._open().connect() as connection:
            yield connection

    def now(self, connection: Connection) -> float:
        """Seconds, by the database's clock."""
        if self.dialect == "sqlite":
            return time.time()
        return float(connection.execute(sa.select(self._clock)).scalar_one())

    def flush(self) -> None:
        """Make durable, also against a power cut, what is committed (servers do so by themselves)."""
        if self.dialect == "sqlite":
            with self.read() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    # inside
    def _open(self) -> sa.Engine:
        if self._engine is None:
            raise LedgerError(f"{self.where}: the ledger is closed")
        return self._engine

    def _connection(self) -> Connection:
        """The one connection that writes."""
        if self._writer is None:
            self._writer = self._open().connect().execution_options(**{_WRITES: True})
        return self._writer

    def _start(self) -> Write:
        """Begin and lock. A connection that broke while idle is opened anew once: nothing was written on it yet."""
        for last in (False, True):
            writer = self._connection()
            try:
                row = writer.execute(self._get_meta, {"r": self.run}).one()
                break
            except DBAPIError as error:
                writer.close()
                self._writer = None
                if last or not error.connection_invalidated:
                    raise
            except BaseException:
                writer.rollback()
                raise
        now = time.time() if self.dialect == "sqlite" else float(row.now)
        return Write(writer, self.run, Meta(*row[: len(_META)]), now)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise LedgerError(f"{self.where}: {explain(error, self.timeout_s)}") from error

    def _create(self) -> None:
        """Make tables and the run's row. Several processes may do so at once: who comes second finds them made."""
        row = {"run": self.run, "format": tables.FORMAT, **dict.fromkeys(_META, 0)}
        for last in (False, False, False, False, True):
            try:
                with self._open().connect().execution_options(**{_WRITES: True}) as connection, connection.begin():
                    tables.metadata.create_all(connection)
                    have = sa.select(tables.meta.c.run).where(tables.meta.c.run == self.run)
                    if connection.execute(have).first() is None:
                        connection.execute(sa.insert(tables.meta), row)
                return
            except (DBAPIError, IntegrityError):
                if last or self.dialect == "sqlite":
                    raise
                time.sleep(0.1)

    def _check_format(self, created: bool) -> None:
        with self._open().connect() as connection:
            query = sa.select(tables.meta.c.format).where(tables.meta.c.run == self.run)
            found = connection.execute(query).scalar()
        if found is None:
            raise LedgerError(f"{self.where}: holds no run {self.run!r}. Name the database that the run wrote")
        if found != tables.FORMAT:
            raise LedgerError(
                f"{self.where}: tables of format {found}, this version of trinity-core uses {tables.FORMAT}. "
                "Use the version that wrote them"
            )


def explain(error: SQLAlchemyError | sqlite3.Error, timeout_s: float) -> str:
    """What a database's error means and what to do about it."""
    said = str(getattr(error, "orig", None) or error).strip().splitlines()
    text = said[0] if said else type(error).__name__
    low = text.lower()
    for words, fix in (
        (("locked", "lock wait", "lock timeout", "busy"), f"another process has held it for {timeout_s:g} s. Stop that process, or raise buffer.timeout_s"),
        (("not a database", "malformed", "corrupt"), "the file is damaged. Restore it from a copy, or start a new run with out=DIR"),
        (("unable to open", "no such file", "permission", "readonly", "read-only"), "the file or its folder cannot be opened. Check that it exists and may be written"),
        (("full", "disk i/o", "no space", "too big"), "it could not be written. Free space on that disk, then resume the run"),
        (("max_allowed_packet", "packet"), "a group is larger than the server accepts. Raise max_allowed_packet"),
        (("connect", "refused", "timeout", "timed out", "password", "access denied", "gone away"), "the server did not let us in. Check that it runs, buffer.url, and the variable that buffer.password_env names"),
    ):  # fmt: skip
        if any(word in low for word in words):
            return f"{text}: {fix}"
    return f"{text}: the database refused. Check that only trinity writes these tables"


def _engine(url: URL, timeout_s: float, create: bool, where: str) -> sa.Engine:
    arguments: dict[str, Any]
    backend = url.get_backend_name()
    if backend == "sqlite":
        arguments = {"timeout": timeout_s, "check_same_thread": False}
    elif backend == "postgresql":
        milliseconds = int(timeout_s * 1000)
        arguments = {"connect_timeout": max(1, int(timeout_s)), "options": f"-c lock_timeout={milliseconds}"}
    else:
        wait = max(1, int(timeout_s))
        arguments = {"connect_timeout": wait, "init_command": f"SET innodb_lock_wait_timeout={wait}"}
    options: dict[str, Any] = (
        {} if backend == "sqlite" else {"pool_pre_ping": True, "isolation_level": "READ COMMITTED"}
    )
    try:
        engine = sa.create_engine(url, connect_args=arguments, **options)
    except ImportError as error:
        extra = "postgres" if backend == "postgresql" else "mariadb"
        raise LedgerError(
            f"{where}: the driver {error.name} is missing. pip install 'trinity-core[{extra}]'"
        ) from error
    if backend == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", partial(_begin_sqlite, timeout_s=timeout_s))
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # we begin transactions ourselves: the driver would begin them too late
    connection.execute("PRAGMA journal_mode=WAL")
    # NORMAL: a commit survives the death of every process; a power cut may lose commits since the last `flush`.
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(connection: Connection, timeout_s: float) -> None:
    """Begin; a writer first waits for the file. SQLite's own wait sleeps up to 100 ms at a time: too long for
    writes of a few."""
    raw: Any = connection.connection.dbapi_connection
    if not connection.get_execution_options().get(_WRITES):
        raw.execute(f"PRAGMA busy_timeout={int(timeout_s * 1000)}")
        raw.execute("BEGIN")
        return
    deadline = time.monotonic() + timeout_s
    raw.execute("PRAGMA busy_timeout=0")
    while time.monotonic() < deadline:
        try:
            raw.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                break
            time.sleep(random.uniform(0.0001, 0.0005))
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # the last try, whose error is reported
