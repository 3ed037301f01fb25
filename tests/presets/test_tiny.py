"""Every preset runs end to end on a real model: two steps of a tiny random Llama on ``local`` and ``hf``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.presets.bandits import PRESETS, words_on_a_model
from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.run import start
from trinity_core.testing.tiny import make_tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("model") / "other", seed=1)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_trains_a_real_model(preset: str, tiny: Path, other: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    words = words_on_a_model(preset, tiny, teacher=other)
    summary = start(check(compose(words)), words, out=tmp_path / "out")
    assert (summary["status"], summary["steps"]) == ("finished", 2)
    steps = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in steps if line["event"] == "step"]
    moved = [line["weights/moved"] for line in steps]
    assert max(moved) > 0, "no weight changed in two steps"
