"""Every preset learns: a bandit with ten arms in each of ten states, or a guessing game of two turns; five seeds each.

The table policy is exact and knows nothing at the start, so that what a preset gains is the algorithm's doing. Presets that
raise no answer's probability by themselves are judged by what they minimise.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from tests.presets.bandits import FAST, PRESETS, TAUGHT, words_for
from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.run import start
from trinity_core.run.export import export

pytestmark = pytest.mark.slow
SEEDS = range(5)
MARGIN = 0.3
"""Least rise of greedy accuracy, of at most 1."""
BY_LOSS = {"cpt": 0.2, "ipo": 0.2, "dpo": 0.7}
"""Largest share of the first step's loss that may be left at the last."""


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that has learned the digits."""
    folder = tmp_path_factory.mktemp("teacher")
    words = [*FAST, "algorithm=grpo", "seed=9"]
    start(check(compose(words)), words, out=folder / "run")
    return export(folder / "run", folder / "model")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_beats_its_start(preset: str, teacher: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    words = words_for(preset, teacher if preset in TAUGHT else None)
    config = check(compose(words))
    for seed in SEEDS:
        out = tmp_path / str(seed)
        summary = start(dataclasses.replace(config, seed=seed), words, out=out)
        before, after = summary["eval_before"]["accuracy"], summary["eval_after"]["accuracy"]
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses = [line["loss"] for line in lines if line["event"] == "step"]
        print(f"{preset} seed {seed}: accuracy {before:.2f} -> {after:.2f}, loss {losses[0]:.4g} -> {losses[-1]:.4g}")
        if preset in BY_LOSS:
            assert losses[-1] <= BY_LOSS[preset] * losses[0]
        else:
            assert after >= before + MARGIN
