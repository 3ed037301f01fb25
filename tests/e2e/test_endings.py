"""How a run ends from outside, and what is exported of it."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.helpers import trinity

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("number", "code", "every", "where"),
    [
        (signal.SIGINT, 130, 0, r" from its start \(there is no checkpoint yet\)"),
        (signal.SIGTERM, 143, 1, r" from step \d+, its last checkpoint,"),
    ],
)
def test_a_signal_ends_a_run_with_its_shell_code_and_one_message(number, code, every, where, tmp_path: Path):
    words = [f"checkpoint.every={every}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "trinity_core.cli", "run", "recipe=fake", "steps=100000", "out=run", *words],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    end = time.monotonic() + 60
    lines = tmp_path / "run" / "metrics.jsonl"
    wanted = '"checkpointed"' if every else '"step"'
    while time.monotonic() < end and not (lines.is_file() and wanted in lines.read_text()):
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, out + err
    assert (out + err).count("interrupted at step") == 1
    assert re.search(rf"Go on{where} with: trinity run resume=", err), err
    assert "Traceback" not in err


def test_an_export_has_the_users_mode_and_says_how_to_load_it(tmp_path: Path):
    trinity("run", "recipe=fake", "steps=1", "out=run", cwd=tmp_path)
    old = os.umask(0o027)
    try:
        done = trinity("export", "run", "model", cwd=tmp_path)
    finally:
        os.umask(old)
    assert done.stdout == "model\n" and "load it: trinity run model.path=model" in done.stderr
    assert stat.S_IMODE((tmp_path / "model" / "model.safetensors").stat().st_mode) == 0o640


def test_a_sweep_shows_one_plan_and_the_reward_where_nothing_was_evaluated(tmp_path: Path):
    deep = "a-folder-with-a-name-that-is-much-longer-than-any-terminal-that-somebody-may-have-is-wide/and/deeper"
    done = trinity(
        *("run", "-m", "recipe=fake", "~eval.tasksets.digits", "seed=0,1", "steps=1", f"out={deep}"), cwd=tmp_path
    )
    assert done.stdout.count("mini-batch") == 1
    assert done.stdout.count("finished │ reward 0.") == 2
    assert f"{deep}/1" in done.stdout
