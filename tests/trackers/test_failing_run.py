"""Every tracker hears the end of a run that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.errors import TrinityError
from trinity_core.run import session

RUN = ["recipe=fake", "steps=1", "eval.before=false", "explorer.retries=0", "explorer.max_draws=1"]


def test_a_failing_run_still_tells_its_trackers_the_end(tmp_path: Path, capsys):
    words = [*RUN, "reward=[]", "+reward@rewards.mine=tests.e2e.user_parts:Raises", f"out={tmp_path / 'out'}"]
    with pytest.raises(TrinityError) as caught:
        session.start(check(compose(words)), words)
    last = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()][-1]
    assert last["event"] == "finished" and last["status"] == "failed" and last["error"]
    assert "run failed" in capsys.readouterr().out
    # the message names the user's line, and the bundle holds the traceback of the process it was raised in
    assert "no such column: answer (user_parts.py:" in str(caught.value)
    failure = json.loads((tmp_path / "out" / "failure.json").read_text())
    assert "in __call__" in "".join(failure["traceback"])


def test_a_start_that_fails_leaves_no_folder_behind(tmp_path: Path, capsys):
    words = [*RUN, "+taskset@tasksets.more=tests.e2e.user_parts:Empty"]
    out, standing = tmp_path / "deep" / "out", tmp_path / "standing"
    standing.mkdir()
    for folder in (out, standing):
        with pytest.raises(TrinityError, match="has no task"):
            session.start(check(compose([*words, f"out={folder}"])), words)
    assert not (tmp_path / "deep").exists()
    assert list(standing.iterdir()) == []
    assert "resume=" not in capsys.readouterr().out
