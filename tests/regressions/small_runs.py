"""Whole runs in this process: what ``trinity run WORDS`` does, on a table policy, within a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.run import start
from trinity_core.run.audit import open_for_reading
from trinity_core.run.resume import expand
from trinity_core.types import Group

FAKE = (
    "model=fake", "backend=fake", "engine=fake", "optim.lr=0.3", "sampling.max_response=2", "groups_per_step=4",
    "algorithm.group_size=4", "taskset=[]", "+taskset@tasksets.digits=trinity_core.testing.fakes:Digits",
    "reward=[]", "+reward@rewards.right=run_parts:Right", "tracker=[jsonl]",
)  # fmt: skip
"""The table policy, a taskset it can learn, and a reward that needs no process of its own."""


def run(*words: str) -> dict[str, Any]:
    """Run these words, those of an earlier run first where ``resume=DIR`` is among them. Returns the summary."""
    whole = expand(list(words))
    return start(check(compose(whole)), whole)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Lines of ``metrics.jsonl`` of this kind, in order."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def stored(folder: Path) -> list[Group]:
    """The groups of a run that were not voided, in order of draw."""
    ledger = open_for_reading(folder)
    try:
        return list(ledger.groups())
    finally:
        ledger.close()
