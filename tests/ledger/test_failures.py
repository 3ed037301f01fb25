"""What can go wrong with a database ends in one message that says where and what to do."""

from __future__ import annotations

import sqlite3
import threading
import time

import numpy as np
import pytest

from trinity_core.builtins.buffers.sql import SQLBuffer
from trinity_core.errors import ConfigError, DataError, Fenced, LeaseLost, LedgerError
from trinity_core.protocols import Position
from trinity_core.testing.contracts._support import BareRun, open_new, small_group
from trinity_core.types import Group


def test_a_locked_database_is_waited_for_and_then_named(tmp_path):
    ledger, run = open_new(SQLBuffer(timeout_s=0.2), tmp_path)
    holder = sqlite3.connect(tmp_path / "buffer.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(
        LedgerError, match=r"buffer\.db: .*locked: another process has held it for 0\.2 s\. .*buffer\.timeout_s"
    ):
        ledger.put(small_group(run.id, 0))
    holder.execute("ROLLBACK")
    assert ledger.put(small_group(run.id, 0)), "once the lock is gone, writing goes on"
    ledger.close()


def test_a_lock_that_ends_in_time_is_no_error(tmp_path):
    ledger, run = open_new(SQLBuffer(timeout_s=10), tmp_path)
    holder = sqlite3.connect(tmp_path / "buffer.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    threading.Timer(0.2, lambda: holder.execute("ROLLBACK")).start()
    assert ledger.put(small_group(run.id, 0))
    ledger.close()


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "buffer.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(LedgerError, match=r"buffer\.db: file is not a database: the file is damaged\. Restore it"):
        SQLBuffer().open(BareRun(tmp_path))


def test_a_damaged_database_is_named(tmp_path):
    ledger, run = open_new(SQLBuffer(), tmp_path)
    for draw in range(50):
        ledger.put(small_group(run.id, draw))
    ids = [entry.id for entry in ledger.index()]
    ledger.close()
    data = bytearray((tmp_path / "buffer.db").read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    (tmp_path / "buffer.db").write_bytes(data)
    with pytest.raises(LedgerError, match=r"buffer\.db: .*the file is damaged"):
        SQLBuffer().open(run).read(ids)


def test_a_damaged_group_is_named(tmp_path):
    ledger, run = open_new(SQLBuffer(), tmp_path)
    ledger.put(small_group(run.id, 0))
    with sqlite3.connect(tmp_path / "buffer.db") as raw:
        raw.execute("UPDATE trinity_payloads SET data = substr(data, 1, 40)")
    with pytest.raises(DataError, match=f"group {run.id}/000000: .*damaged"):
        ledger.read([f"{run.id}/000000"])


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(LedgerError, match=r"nowhere/buffer\.db: unable to open .* Check that it exists"):
        SQLBuffer().open(BareRun(tmp_path / "nowhere"))


def test_a_server_that_is_not_there_is_named():
    pytest.importorskip("psycopg")
    with pytest.raises(LedgerError, match=r"postgresql.*127\.0\.0\.1.*: .*Check that it runs"):
        SQLBuffer(url="postgresql://nobody@127.0.0.1:1/none", timeout_s=1).open(BareRun(None))


@pytest.mark.parametrize(
    ("buffer", "said"),
    [
        (SQLBuffer(url="postgresql://u:secret@h/db"), "holds a password. Put it in an environment variable"),
        (SQLBuffer(url="postgresql://u@h/db", password_env="TRINITY_NOT_SET"), "TRINITY_NOT_SET is not set"),
        (SQLBuffer(url="not a url"), "is not a database URL"),
        (SQLBuffer(url="oracle://u@h/db"), "oracle is not supported"),
        (SQLBuffer(url="sqlite://"), "take buffer=memory"),
    ],
)
def test_a_url_that_cannot_be_used_says_why(buffer, said, tmp_path):
    with pytest.raises(ConfigError) as caught:
        buffer.address(tmp_path)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value).replace("buffer.password", "")


def test_the_password_comes_from_the_environment_and_stays_out_of_messages(tmp_path, monkeypatch):
    pytest.importorskip("psycopg")
    monkeypatch.setenv("TRINITY_TEST_PASSWORD", "hush")
    buffer = SQLBuffer(url="postgresql://u@127.0.0.1:1/db", password_env="TRINITY_TEST_PASSWORD", timeout_s=1)
    assert buffer.address(tmp_path).password == "hush"
    with pytest.raises(LedgerError) as caught:
        buffer.open(BareRun(tmp_path))
    assert "hush" not in str(caught.value)


def test_a_full_disk_loses_nothing_that_was_stored(tmp_path):
    ledger, run = open_new(SQLBuffer(), tmp_path)
    ledger.put(small_group(run.id, 0))
    ledger._store._writer.exec_driver_sql("PRAGMA max_page_count=60")
    ledger._store._writer.commit()
    big = small_group(run.id, 1)
    big.attempts[0].info = {"noise": np.random.default_rng(0).bytes(10**6)}
    with pytest.raises(LedgerError, match=r"full: it could not be written\. Free space"):
        ledger.put(big)
    assert [entry.draw for entry in ledger.index()] == [0]
    ledger._store._writer.exec_driver_sql("PRAGMA max_page_count=1000000")
    ledger._store._writer.commit()
    assert ledger.put(big), "with space again, writing goes on"


def test_a_checkpoint_of_another_ledger_is_refused(buffer, tmp_path):
    ledger = buffer.open(BareRun(tmp_path))
    with pytest.raises(LedgerError, match="the checkpoint stands at step 5, draw 40; this ledger knows 0 lineages"):
        ledger.begin(Position(5, 40, 0), ordered=True)
    ledger.close()


def test_several_runs_share_one_database(tmp_path):
    buffer = SQLBuffer(url=f"sqlite:///{tmp_path}/shared.db")
    (one, run_one), (two, run_two) = open_new(buffer, tmp_path), open_new(buffer, tmp_path)
    one.put(small_group(run_one.id, 0))
    two.put(small_group(run_two.id, 0))
    one.begin(None, ordered=True)
    assert (one.taken(), two.taken(), one.lineage, two.lineage) == (0, 1, 2, 1)
    assert two.put(small_group(run_two.id, 1)), "another run's lineage is no fence here"


def test_a_place_of_another_draw_is_refused(buffer, tmp_path):
    ledger, run = open_new(buffer, tmp_path)
    (opening,) = ledger.enter("x", 1, 1, version=0, ttl_s=9)
    with pytest.raises(LedgerError, match="of draw 5 cannot take the place of draw 0"):
        ledger.put(small_group(run.id, 5), place=opening.place)
    assert ledger.taken() == 1
    assert ledger.put(small_group(run.id, 0), place=opening.place)


def test_what_cannot_be_stored_leaves_no_trace(buffer, tmp_path):
    ledger, run = open_new(buffer, tmp_path)
    group = small_group(run.id, 0)
    group.attempts[0].info = {"x": object()}
    with pytest.raises(DataError, match=r"info\['x'\]"):
        ledger.put(group)
    assert [event.event for event in ledger.events()] == ["lineage"]


def test_fence_and_lease_are_told_apart():
    assert issubclass(Fenced, LedgerError) and issubclass(LeaseLost, LedgerError)
    assert not issubclass(Fenced, LeaseLost) and not issubclass(LeaseLost, Fenced)


def test_a_look_at_the_index_stays_fast_after_ten_thousand_groups(tmp_path):
    ledger, run = open_new(SQLBuffer(), tmp_path)
    task = small_group(run.id, 0).task
    ledger.put_all([(Group(f"{run.id}/{draw:06d}", task, [], draw=draw), None) for draw in range(10_000)])
    with ledger._store.write(1) as write:
        write.connection.exec_driver_sql("UPDATE trinity_groups SET uses = 1")
    for draw in range(10_000, 10_064):
        ledger.put(small_group(run.id, draw))
    began = time.perf_counter()
    for _ in range(10):
        assert len(ledger.index()) == 64
    assert (time.perf_counter() - began) / 10 < 0.05
    with ledger._store.read() as connection:
        plan = connection.exec_driver_sql(
            "EXPLAIN QUERY PLAN SELECT id FROM trinity_groups WHERE run = 'r' AND status = 'stored' AND uses < 1"
        ).all()
    assert "USING INDEX trinity_groups_ready" in str(plan)
