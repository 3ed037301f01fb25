"""Whole runs with adapters: beside the trainer, and in a process of its own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from tests.run.test_meeting import explorer, lines, run, until
from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.run.audit import audit
from trinity_core.run.digest import digest
from trinity_core.run.folder import RunFolder
from trinity_core.run.session import run_in


@pytest.fixture
def words(tiny: Path) -> tuple[str, ...]:
    return (
        f"model.path={tiny}", "model.dtype=float32", "model.lora={rank: 4, alpha: 8}", "threads=1", "optim.lr=0.01",
        "groups_per_step=2", "algorithm.group_size=4", "sampling.max_response=6", "tracker=[jsonl]", "taskset=[]",
        "+taskset@tasksets.digits=trinity_core.testing.fakes:Digits", "reward=[]",
        "+reward@rewards.letters=trinity_core.testing.fakes:Letters",
    )  # fmt: skip


AHEAD = ("sync.offset=1", "sync.uncorrected=true")


@pytest.mark.slow
def test_play_that_runs_ahead_gets_adapters_and_a_resume_ends_the_same(words: Any, tmp_path: Path) -> None:
    whole = run(*words, *AHEAD, "steps=4", "checkpoint.every=2", f"out={tmp_path / 'whole'}")
    assert whole["status"] == "finished"
    run(*words, *AHEAD, "steps=2", f"out={tmp_path / 'cut'}")
    run(f"resume={tmp_path / 'cut'}", "steps=4")
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")
    steps = lines(tmp_path / "whole" / "metrics.jsonl", "step")
    # the sampler is the policy of one step before. One that keeps its first adapters is .12 away by step 4
    assert steps[-1]["staleness/max"] == 1 and 0 < steps[-1]["kl/sampler_k3"] < 0.02


@pytest.mark.slow
def test_an_explorer_elsewhere_plays_with_the_adapters_it_is_sent(words: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"

    async def main() -> dict[str, Any]:
        whole = [*words, "steps=3", "mode=train"]
        teaching = asyncio.create_task(run_in(check(compose(whole)), whole, RunFolder.create(out)))
        await until(lambda: (out / "weights").is_dir())
        played = await explorer(out, "mode=explore")
        await teaching
        return played

    assert asyncio.run(main())["status"] == "finished"
    assert audit(out).text().endswith("audit: clean") and audit(out).steps == 3
    versions = sorted((out / "weights").iterdir())
    for folder in versions:
        assert json.loads((folder / "version.json").read_text())["kind"] == "adapter"
        with safe_open(folder / "model.safetensors", "pt") as file:
            names = set(file.keys())
        assert {"lora_alpha", "base_digest"} < names and sum("lora_" in name for name in names) == 29
    # each step learns from what was sampled with the very policy it updates: the two agree to rounding
    for step in lines(out / "metrics.jsonl", "step"):
        assert abs(step["kl/sampler"]) < 1e-6 and step["staleness/max"] == 0
