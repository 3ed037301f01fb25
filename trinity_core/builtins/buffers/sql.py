"""The ledger in an SQL database: SQLite in the run folder by default, PostgreSQL or MariaDB by URL."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from trinity_core.errors import ConfigError, LedgerError
from trinity_core.protocols import Buffer, Ledger, RunContext

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from trinity_core.builtins.buffers.sql_ledger import SqlLedger

FILE = "buffer.db"
DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}  # fmt: skip
"""Drivers that the extras ``postgres`` and ``mariadb`` install; another one is chosen by naming it in the URL."""


@dataclass(frozen=True)
class SQLBuffer(Buffer):
    """Keeps groups in an SQL database that several processes share.

    Without a URL: SQLite in WAL mode, ``<run folder>/buffer.db``, for processes of one machine on a local disk. Explorers on
    other machines need a server: ``postgresql://user@host/db`` or ``mysql://user@host/db``. Runs may share a database.
    """

    shared: ClassVar[bool] = True

    url: str | None = None
    """SQLAlchemy URL without a password; null: SQLite in the run folder."""
    password_env: str | None = None
    """Environment variable that holds the server's password."""
    timeout_s: float = 30.0
    """Longest wait for a lock or a connection, in seconds."""

    def open(self, run: RunContext) -> Ledger:
        return self.ledger(run.dir, run.id, create=True)

    def ledger(self, folder: Path, run_id: str, *, create: bool) -> SqlLedger:
        """A handle on the ledger of run ``run_id`` in ``folder``. Without ``create`` it must exist."""
        from trinity_core.builtins.buffers.sql_ledger import SqlLedger
        from trinity_core.builtins.buffers.store import Store

        url = self.address(folder)
        if url.get_backend_name() == "sqlite" and not create and not Path(url.database or "").is_file():
            raise LedgerError(f"{url.database}: no such file. The run of {folder} wrote no ledger there")
        return SqlLedger(Store(url, run_id, timeout_s=self.timeout_s, create=create))

    def address(self, folder: Path) -> URL:
        """The whole URL, with driver and password."""
        from sqlalchemy.engine import URL, make_url
        from sqlalchemy.exc import ArgumentError

        if self.url is None:
            return URL.create("sqlite", database=str(folder / FILE))
        try:
            url = make_url(self.url)
        except ArgumentError:
            raise ConfigError(
                f"buffer.url: {self.url!r} is not a database URL. Write e.g. postgresql://user@host/db"
            ) from None
        if url.password is not None:
            raise ConfigError(
                "buffer.url: holds a password. Put it in an environment variable and name that in buffer.password_env"
            )
        url = url.set(drivername=DRIVERS.get(url.drivername, url.drivername))
        if url.get_backend_name() not in ("sqlite", "postgresql", "mysql", "mariadb"):
            raise ConfigError(
                f"buffer.url: {url.get_backend_name()} is not supported. Use sqlite, postgresql, mysql or mariadb"
            )
        if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
            raise ConfigError("buffer.url: an SQLite ledger is a file. Write sqlite:///PATH, or take buffer=memory")
        if self.password_env is not None:
            password = os.environ.get(self.password_env)
            if password is None:
                raise ConfigError(
                    f"buffer.password_env: the environment variable {self.password_env} is not set. Set it to the password"
                )
            url = url.set(password=password)
        return url
