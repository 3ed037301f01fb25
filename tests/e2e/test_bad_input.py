"""Bad input at run time: one message with what, where and the fix; an exit code that is not 0; nothing lost."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.helpers import DIGITS, FAKE, trinity

pytestmark = pytest.mark.slow

RUN = ("run", *FAKE, *DIGITS, "explorer.max_draws=2", "explorer.retries=0")
USER = "tests.e2e.user_parts"
ROOT = str(Path(__file__).parents[2])

TABLE = {
    "a reward that raises": (("reward=[]", f"+reward@rewards.mine={USER}:Raises"), "no such column: answer"),
    "a reward that hangs": (("reward=[]", f"+reward@rewards.mine={USER}:Hangs"), "0.5 s"),
    "a reward that kills its process": (("reward=[]", f"+reward@rewards.mine={USER}:Dies"), "rewards.mine"),
    "a reward that is not a number": (("reward=[]", f"+reward@rewards.mine={USER}:NotANumber"), "nan"),
    "a gold answer that cannot be read": (("reward=[]", f"+reward@rewards.mine={USER}:Unparseable"), "the gold answer cannot be read"),
    "a workflow that returns nothing": ((f"workflow={USER}:Nothing",), "returned nothing"),
    "an empty taskset": ((f"+taskset@tasksets.more={USER}:Empty",), "tasksets.more: the taskset has no task"),
    "a loss that raises": ((f"loss={USER}:Broken",), "division by zero in my loss"),
    "a model that is nowhere": (("model.path=/no/such/model", "backend=local", "engine=hf"), "/no/such/model"),
    "a resume of nothing": (("resume=nowhere",), "nowhere: not a run folder"),
}  # fmt: skip


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return trinity(*words, cwd=cwd, check=False, env={"PYTHONPATH": ROOT, "HF_HUB_OFFLINE": "1"})


@pytest.mark.parametrize("case", TABLE)
def test_bad_input_gets_one_message_and_a_failing_exit_code(case, tmp_path):
    words, message = TABLE[case]
    done = run(*RUN, *words, "steps=2", "out=out", cwd=tmp_path)
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 6, done.stderr


def test_a_corrupt_checkpoint_is_named_and_nothing_is_changed(tmp_path):
    run(*RUN, "steps=2", "checkpoint.every=1", "out=out", cwd=tmp_path)
    file = next((tmp_path / "out" / "checkpoints" / "step-000002" / "backend").iterdir())
    file.write_bytes(file.read_bytes()[:-1] + b"\xff\xfe")
    done = run("run", "resume=out", "steps=4", cwd=tmp_path)
    assert done.returncode == 1
    assert f"{file.name}: damaged" in done.stderr and "to go on from step-000001" in done.stderr
    import shutil

    shutil.rmtree(file.parents[1])
    assert run("run", "resume=out", "steps=4", cwd=tmp_path).returncode == 0


def test_a_disk_that_fills_while_saving_keeps_the_last_checkpoint(tmp_path):
    """A file-size limit stands in for a full disk."""
    assert run(*RUN, "steps=1", "out=out", cwd=tmp_path).returncode == 0
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, resource.RLIM_INFINITY)); from trinity_core.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "resume=out", "steps=3"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": ROOT},
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "could not be written" in done.stderr and "last good checkpoint" in done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert run("run", "resume=out", "steps=3", cwd=tmp_path).returncode == 0


def test_a_locked_database_is_named_after_a_bounded_wait(tmp_path):
    assert run(*RUN, "buffer.timeout_s=1", "steps=1", "out=out", cwd=tmp_path).returncode == 0
    lock = sqlite3.connect(tmp_path / "out" / "buffer.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    done = run("run", "resume=out", "steps=2", cwd=tmp_path)
    lock.close()
    assert done.returncode == 1
    assert "buffer.db" in done.stderr and "locked" in done.stderr
    assert run("run", "resume=out", "steps=2", cwd=tmp_path).returncode == 0


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path):
    from trinity_core.testing.tiny import make_tiny

    model = make_tiny(tmp_path / "tiny", chat_template=False)
    done = run(*RUN, f"model.path={model}", "backend=local", "engine=hf", "steps=1", "out=out", cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert "chat template" in done.stderr and "model.chat_template" in done.stderr


def test_a_failed_run_leaves_a_bundle_that_names_its_batch(tmp_path):
    run(*RUN, f"loss={USER}:Broken", "steps=2", "out=out", cwd=tmp_path)
    failure = json.loads((tmp_path / "out" / "failure.json").read_text())
    assert len(failure["groups"]) == 4
    assert "division by zero in my loss" in "".join(failure["traceback"])
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "failed"
