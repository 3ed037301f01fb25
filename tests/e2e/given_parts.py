"""Runs of the table policy in this process, for data that is given; and parts that they name by import string."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.protocols import Reward
from trinity_core.run import start
from trinity_core.run.audit import open_for_reading
from trinity_core.types import Group

DIGITS = "trinity_core.testing.fakes:Digits"
TABLE = (
    "model=fake", "backend=fake", "engine=fake", f"taskset=['{DIGITS}']", f"+taskset@eval.tasksets.heldout={DIGITS}",
    "sampling.max_response=2", "optim.lr=0.3", "groups_per_step=4", "tracker=[jsonl]",
)  # fmt: skip


def run(folder: Path, *words: str) -> dict[str, Any]:
    typed = [*TABLE, *words]
    return start(check(compose(typed)), typed, out=folder)


def resumed(folder: Path, *words: str) -> dict[str, Any]:
    saved = json.loads((folder / "words.json").read_text())["words"]
    return start(check(compose([*saved, *words, f"resume={folder}"])), list(words))


def groups(folder: Path) -> list[Group]:
    ledger: Any = open_for_reading(folder)
    try:
        return list(ledger.groups(before_draw=10**9))
    finally:
        ledger.close()


def steps(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "step"]


@dataclass(frozen=True)
class Same(Reward):
    """The same score for every attempt."""

    async def __call__(self, attempt: Any) -> float:
        return 0.5
