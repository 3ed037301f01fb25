"""Names of metrics: every one that a run logs is in the docs, and a step that learned nothing says so."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trinity_core.algo import AdvantageBatch, Credit
from trinity_core.builtins.trackers.alarms import RULES
from trinity_core.builtins.trackers.words import COLUMNS
from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.protocols import Advantage
from trinity_core.run.session import start

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
RUN = ("recipe=fake", "groups_per_step=2", "algorithm.group_size=4", "tracker=[jsonl]", "eval.before=false")
EVERYTHING = {
    "term, correction, filter": (
        "correction=[truncated_is]",
        "algorithm.kl.coef=0.1",
        "algorithm.entropy_coef=0.01",
        "optim.mini_batches=2",
        "operator=[dynamic_sampling]",
    ),
    "a loss without old log-probabilities": ("loss=sft", "advantage=raft", "algorithm.old_logp=measure"),
}


@dataclass(frozen=True)
class KeepsNothing(Advantage):
    """Every token is left out before the step."""

    def __call__(self, batch: AdvantageBatch) -> Credit:
        return Credit(np.ones(len(batch.reward_A)), keep_N=np.zeros(len(batch.attempt_N), np.bool_))


def steps(folder: Path, *words: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Metrics of each step of a run, and its warnings."""
    words = (*RUN, *words, f"out={folder}")
    start(check(compose(words)), words)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    said = [line["message"] for line in lines if line["event"] == "warned"]
    return [line for line in lines if line["event"] == "step"], said


def documented() -> list[str]:
    """Names of the first columns of the tables."""
    rows = [line.split("|")[1] for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def is_documented(name: str) -> bool:
    return any(re.fullmatch(re.sub(r"<\w+>", "[^/]+", known), name) for known in documented())


@pytest.mark.parametrize("parts", EVERYTHING)
def test_every_metric_of_a_run_is_in_the_docs(parts, tmp_path):
    taken, _ = steps(tmp_path / "run", "steps=2", *EVERYTHING[parts])
    names = {name for metrics in taken for name in metrics} - {"event", "time", "step"}
    assert len(names) > 30
    assert sorted(name for name in names if not is_documented(name)) == []


def test_what_trackers_and_alarms_look_for_is_in_the_docs():
    for name in [*RULES, *(name for _, names, _ in COLUMNS for name in names)]:
        assert is_documented(name.replace("*", "x")), name
    assert not is_documented("kl/nobody")


def test_a_step_whose_tokens_are_all_dropped_is_a_finite_zero_and_a_warning(tmp_path):
    taken, said = steps(tmp_path / "run", "steps=2", f"advantage={__name__}:KeepsNothing")
    for metrics in taken:
        assert (metrics["updates/empty"], metrics["tokens"], metrics["kept"]) == (1.0, 0.0, 0.0)
        assert (metrics["loss"], metrics["grad_norm"], metrics["weights/moved"]) == (0.0, 0.0, 0.0)
    assert [one.split(":")[0] for one in said if "dropped" in one] == ["step 1", "step 2"]


def test_a_step_that_trains_has_no_empty_update(tmp_path):
    taken, said = steps(tmp_path / "run", "steps=1")
    assert taken[0]["updates/empty"] == 0.0 and taken[0]["tokens"] > 0
    assert not [one for one in said if "dropped" in one]
