"""A trainer and its explorers, each with a ledger handle of its own, in one process."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from pathlib import Path

import pytest

from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.errors import ConfigError, RunError
from trinity_core.run import start
from trinity_core.run.audit import audit, open_for_reading
from trinity_core.run.digest import digest
from trinity_core.run.folder import RunFolder
from trinity_core.run.joining import explore_for, join_config
from trinity_core.run.resume import expand
from trinity_core.run.session import run_in

PARTS = "tests.run.waiting_parts"
FAKE = (
    "model=fake", "backend=fake", "engine=fake", "optim.lr=0.3", "sampling.max_response=2", "groups_per_step=4",
    "algorithm.group_size=4", "taskset=[]", "+taskset@tasksets.digits=trinity_core.testing.fakes:Digits",
    "reward=[]", f"+reward@rewards.right={PARTS}:Right", "tracker=[jsonl]",
)  # fmt: skip
ARRIVAL = ("sync.mode=async", "sync.max_staleness=1", "sync.uncorrected=true", "explorer.order=arrival")


def run(*words: str) -> dict:
    whole = expand(list(words))
    return start(check(compose(whole)), whole)


def trainer(out: Path, *words: str):
    """The trainer of a run of several processes, as a coroutine."""
    whole = [*FAKE, *words, "mode=train"]
    return run_in(check(compose(whole)), whole, RunFolder.create(out))


def explorer(out: Path, *words: str):
    """An explorer that joins it, as a coroutine."""
    whole = expand(["mode=explore", f"join={out}", *words])
    return join_config(check(compose(whole)), whole, explore_for)


async def until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.05)


def lines(path: Path, event: str) -> list[dict]:
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["event"] == event]


def versions(out: Path) -> list[int]:
    """Versions that were ever played."""
    with sqlite3.connect(out / "buffer.db") as connection:
        return [row[0] for row in connection.execute("select version from trinity_begun order by version")]


def test_two_lockstep_explorers_fill_an_ordered_run_and_show_what_they_do(tmp_path, capsys):
    out = tmp_path / "out"

    async def main() -> list[dict]:
        teaching = asyncio.create_task(trainer(out, "steps=3", "tracker=[jsonl,console]"))
        await until(lambda: (out / "weights").is_dir())
        done = await asyncio.gather(explorer(out), explorer(out))
        await teaching
        return done

    summaries = asyncio.run(main())
    assert [one["status"] for one in summaries] == ["finished", "finished"]
    assert audit(out).text().endswith("audit: clean") and audit(out).steps == 3
    printed = capsys.readouterr().out
    for one in summaries:
        logs = Path(one["dir"])
        assert logs.parent == out / "explorers"
        assert len(lines(logs / "metrics.jsonl", "started")) == len(lines(logs / "metrics.jsonl", "finished")) == 1
        assert f"logs   {logs}" in " ".join(printed.split()).replace("logs ", "logs   "), "the plan names its folder"
    assert len(lines(out / "metrics.jsonl", "started")) == 1, "they write only logs of their own"


def test_an_explorer_of_a_finished_run_says_so_and_ends_well(tmp_path):
    out = tmp_path / "out"

    async def main() -> dict:
        teaching = asyncio.create_task(trainer(out, "steps=1"))
        await until(lambda: (out / "weights").is_dir())
        await asyncio.gather(explorer(out), teaching)
        return await explorer(out)

    summary = asyncio.run(main())
    assert summary["status"] == "finished" and summary["groups"] == 0
    (said,) = lines(Path(summary["dir"]) / "metrics.jsonl", "warned")
    assert "that run is finished" in said["message"]


def test_an_explorer_that_is_stopped_gives_its_places_back(tmp_path):
    out = tmp_path / "out"

    async def main() -> int:
        teaching = asyncio.create_task(trainer(out, "steps=1", f"workflow={PARTS}:Waits"))
        await until(lambda: (out / "weights").is_dir())
        playing = asyncio.create_task(explorer(out))
        ledger = open_for_reading(out)
        await until(lambda: ledger.in_flight() == 4)
        playing.cancel()
        with pytest.raises(RunError, match="Join again") as caught:
            await playing
        assert caught.value.exit_code == 130
        left = ledger.in_flight()
        ledger.close()
        teaching.cancel()
        with pytest.raises(RunError, match="interrupted"):
            await teaching
        return left

    assert asyncio.run(main()) == 0
    (summary,) = (out / "explorers").glob("*/summary.json")
    assert json.loads(summary.read_text())["status"] == "interrupted"


def test_a_failing_tracker_ends_the_run_at_once(tmp_path):
    began = time.monotonic()
    with pytest.raises(RunError, match="the disk of the tracker is full"):
        run(*FAKE, f"+tracker@trackers.breaks={PARTS}:Breaks", f"workflow={PARTS}:Waits", f"out={tmp_path / 'out'}")
    assert time.monotonic() - began < 30
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.parametrize("words", [(), ARRIVAL], ids=["lockstep", "arrival"])
def test_a_run_whose_groups_are_all_filtered_ends_and_says_why(tmp_path, words):
    out = tmp_path / "out"
    with pytest.raises(RunError, match=r"step 1: 12 draws gave 0 of 4 groups \(\d+ × filtered by keeps\)"):
        run(*FAKE, *words, f"+operator@operators.keeps={PARTS}:Keeps", "explorer.max_draws=3", f"out={out}")
    assert audit(out).events["filtered"] <= 12 + 8


def test_a_run_that_keeps_a_third_of_its_groups_fills_every_step(tmp_path):
    out = tmp_path / "out"
    keeps = (f"+operator@operators.keeps={PARTS}:Keeps", "operators.keeps.every=3", "explorer.max_draws=6")
    assert run(*FAKE, *ARRIVAL, *keeps, "steps=4", f"out={out}")["steps"] == 4
    report = audit(out)
    assert report.clean, report.problems
    assert "given_up" not in report.events


def test_groups_that_an_operator_makes_have_ids_of_the_kernel_and_none_is_lost(tmp_path):
    out = tmp_path / "out"
    run(*FAKE, *ARRIVAL, f"+operator@operators.twice={PARTS}:Twice", "steps=4", f"out={out}")
    assert audit(out).clean, audit(out).problems
    ledger = open_for_reading(out)
    groups = {group.id: group.draw for group in ledger.groups()}
    ledger.close()
    first = [id for id in groups if "+" not in id]
    assert len(first) >= 8 and {f"{id}+1" for id in first} <= set(groups)
    assert all(groups[f"{id}+1"] == groups[id] for id in first)


def test_an_ordered_run_says_that_groups_in_surplus_train_late(tmp_path):
    out = tmp_path / "out"
    run(*FAKE, f"+operator@operators.twice={PARTS}:Twice", "steps=4", f"out={out}")
    (said,) = lines(out / "metrics.jsonl", "warned")
    assert "an operator made 2 groups of one draw" in said["message"]


def test_an_interval_plays_only_every_third_version_and_a_resume_changes_nothing(tmp_path):
    words = (*FAKE, "sync.interval=3", "sync.uncorrected=true", "checkpoint.every=0")
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    run(*words, "steps=8", "eval.every=4", f"out={whole}")
    assert versions(whole) == [0, 3, 6]
    run(*words, "steps=4", f"out={halves}")
    run(f"resume={halves}", "steps=8")
    assert digest(whole) == digest(halves)


def test_a_folder_in_which_no_run_ever_began_is_free(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".words.json.77.tmp").touch()
    RunFolder.create(tmp_path).close()
    (tmp_path / "words.json").touch()
    with pytest.raises(ConfigError, match="not empty"):
        RunFolder.create(tmp_path)


def test_a_run_that_plays_for_itself_is_joined_by_nobody(tmp_path):
    out = tmp_path / "out"
    run(*FAKE, "steps=1", f"out={out}")
    with pytest.raises(
        ConfigError, match=r"that run has mode=both and hands its weights to nobody else\. Start it with mode=train"
    ):
        asyncio.run(explorer(out))
