"""What only a server can do to us."""

from __future__ import annotations

import time

import pytest

from trinity_core.errors import LedgerError
from trinity_core.testing.contracts._support import open_new, small_group

SERVERS = pytest.mark.parametrize("buffer", ["postgresql", "mariadb"], indirect=True)
KILL = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    "mysql": ("SELECT connection_id()", "KILL {}"),
    "mariadb": ("SELECT connection_id()", "KILL {}"),
}


@pytest.mark.service
@SERVERS
def test_a_connection_that_the_server_dropped_is_opened_anew(buffer, tmp_path):
    ledger, run = open_new(buffer, tmp_path)
    ledger.put(small_group(run.id, 0))
    store = ledger._store
    ask, kill = KILL[store.dialect]
    number = store._writer.exec_driver_sql(ask).scalar()
    store._writer.rollback()
    with store._engine.connect() as other:
        other.exec_driver_sql(kill.format(number))
    time.sleep(0.1)
    assert ledger.put(small_group(run.id, 1))
    assert [entry.draw for entry in ledger.index()] == [0, 1]
    ledger.close()


@pytest.mark.service
@SERVERS
def test_a_row_that_another_process_holds_is_waited_for_and_then_named(buffer, tmp_path):
    from dataclasses import replace

    ledger, run = open_new(replace(buffer, timeout_s=1), tmp_path)
    with ledger._store._engine.connect() as other:
        other.exec_driver_sql(f"SELECT * FROM trinity_meta WHERE run = '{run.id}' FOR UPDATE")
        with pytest.raises(LedgerError, match=r"another process has held it for 1 s\..*buffer\.timeout_s"):
            ledger.put(small_group(run.id, 0))
    assert ledger.put(small_group(run.id, 0)), "once the lock is gone, writing goes on"
    ledger.close()
