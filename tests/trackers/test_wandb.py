"""A real offline run, its file read back."""

from __future__ import annotations

import json
import logging
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trinity_core.builtins.trackers.wandb import Wandb, has_account, mode
from trinity_core.errors import PluginLoadError
from trinity_core.testing.fakes import FakeRun

KEYS = ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_RUN_ID", "WANDB_DIR", "WANDB_RESUME")


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path_factory):
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path_factory.mktemp("home") / "netrc"))


BLOCK = 32_768


def chunks(path: Path) -> Iterator[bytes]:
    """The records of a ``.wandb`` file: seven bytes of header, then LevelDB's log format (blocks of 32 KiB; each piece
    has a checksum of four bytes, a length of two, a type of one: 1 whole, 2 first, 3 middle, 4 last)."""
    data, at, held = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        held += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield held
            held = b""


def records(folder: Path) -> list[Any]:
    """Every record of every offline run in the folder, oldest first."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_ctime_ns):
        for data in chunks(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            found.append(record)
    return found


def history(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for record in records(folder):
        if record.WhichOneof("record_type") == "history":
            rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item})
    return rows


def test_a_run_without_an_account_is_kept_offline_with_explicit_axes_and_one_id_over_a_resume(tmp_path, caplog):
    """TRK-01, TRK-03: one test, because starting the library's service takes seconds."""
    pytest.importorskip("wandb", reason="pip install 'trinity-core[wandb]'")
    caplog.set_level(logging.WARNING)
    out = tmp_path / "out"
    out.mkdir()
    live = Wandb(tags=("a",)).open(FakeRun(dir=out, id="20260101-abc/1"))
    assert not (out / "wandb").exists(), "nothing is created before the run has started"
    live.started({"config": {"seed": 3, "buffer": {"url": "redacted"}}, "resumed": False})
    assert sum("stays offline" in record.message for record in caplog.records) == 1
    live.step(248, {"reward/mean": 0.5})
    live.evaluated(200, "heldout", {"step": 200, "taskset": "heldout", "accuracy": 0.25, "n": 200})
    live.step(249, {"reward/mean": 0.75})
    state = live.state_dict()
    live.finished({"status": "failed", "steps": 249, "next": ["x"]})
    live.close()

    again = Wandb().open(FakeRun(dir=out, id="another"))
    again.load_state_dict(state)
    again.started({"config": {"seed": 3}, "resumed": True, "step": 202})
    again.step(203, {"reward/mean": 1.0})
    again.finished({"status": "finished", "steps": 203})

    folders = [path.name for path in out.glob("wandb/offline-run-*")]
    assert len(folders) == 2 and all("-20260101-abc-1" in name for name in folders)
    runs = [record.run for record in records(out) if record.WhichOneof("record_type") == "run"]
    assert len(runs) == 2 and {run.run_id for run in runs} == {"20260101-abc-1"} and runs[0].project == "trinity"
    rows = [{key: value for key, value in row.items() if not key.startswith("_")} for row in history(out)]
    # step 203 comes after 249 and an evaluation of 200 after 248: every row is there, each with its own axis
    assert rows == [
        {"train/step": 248, "train/reward/mean": 0.5},
        {"eval/step": 200, "eval/heldout/accuracy": 0.25, "eval/heldout/n": 200},
        {"train/step": 249, "train/reward/mean": 0.75},
        {"train/step": 203, "train/reward/mean": 1.0},
    ]
    axes = {
        (r.metric.glob_name or r.metric.name): r.metric.step_metric
        for r in records(out)
        if r.WhichOneof("record_type") == "metric"
    }
    assert axes["train/*"] == "train/step" and axes["eval/*"] == "eval/step"
    exits = [record.exit.exit_code for record in records(out) if record.WhichOneof("record_type") == "exit"]
    assert exits == [1, 0]


def test_wandb_mode_is_respected(monkeypatch, caplog):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert mode() == "disabled" and not caplog.records


def test_an_account_is_found_where_the_library_finds_it(monkeypatch, tmp_path):
    assert not has_account() and mode() == "offline"
    file = tmp_path / "netrc"
    file.write_text("machine api.wandb.ai\n  login user\n  password x\n")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))
    assert has_account() and mode() == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not has_account()
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert has_account()


def test_a_run_that_never_started_can_end(tmp_path):
    pytest.importorskip("wandb", reason="pip install 'trinity-core[wandb]'")
    live = Wandb().open(FakeRun(dir=tmp_path))
    live.finished({"status": "failed"})
    live.close()
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(PluginLoadError, match=r"pip install 'trinity-core\[wandb\]'"):
        Wandb().open(FakeRun(dir=tmp_path))
