"""Every tracker hears the end of a run that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trinity_core.errors import TrinityError


def test_a_failing_run_still_tells_its_trackers_the_end(tmp_path: Path, capsys):
    session = pytest.importorskip("trinity_core.run.session")
    from trinity_core.config.check import check
    from trinity_core.config.compose import compose

    words = [
        "model=fake",
        "backend=fake",
        "engine=fake",
        "tasksets.numbers.size=0",
        "steps=1",
        f"out={tmp_path / 'out'}",
    ]
    with pytest.raises(TrinityError):
        session.start(check(compose(words)), words)
    last = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()][-1]
    assert last["event"] == "finished" and last["status"] == "failed" and last["error"]
    assert "run failed" in capsys.readouterr().out
