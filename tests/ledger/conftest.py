"""The ledgers under test. Servers that cannot be reached are skipped with the reason; in CI that is a failure."""

from __future__ import annotations

import os
import socket

import pytest

from trinity_core.builtins.buffers.memory import MemoryBuffer
from trinity_core.builtins.buffers.sql import SQLBuffer

SERVERS = {
    "postgresql": (os.environ.get("TRINITY_TEST_POSTGRES", "postgresql://postgres@127.0.0.1/test"), 5432, "psycopg"),
    "mariadb": (os.environ.get("TRINITY_TEST_MARIADB", "mysql://root@127.0.0.1/test"), 3306, "pymysql"),
}


def _server(name):
    url, port, driver = SERVERS[name]
    from sqlalchemy.engine import make_url

    at = make_url(url)
    try:
        __import__(driver)
        socket.create_connection((at.host, at.port or port), timeout=2).close()
    except (OSError, ImportError) as error:
        reason = f"{name} at {url} cannot be reached: {error}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    return SQLBuffer(url=url)


@pytest.fixture(
    params=[
        "memory",
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.service),
        pytest.param("mariadb", marks=pytest.mark.service),
    ]
)
def buffer(request):
    """Every ledger that ships, one after the other."""
    if request.param == "memory":
        return MemoryBuffer()
    return SQLBuffer(timeout_s=10) if request.param == "sqlite" else _server(request.param)
