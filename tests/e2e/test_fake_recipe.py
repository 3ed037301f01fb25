"""``recipe=fake`` teaches something a newcomer sees, and shows what a changed word changes."""

from __future__ import annotations

import pytest

from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.run import start

pytestmark = pytest.mark.slow  # whole processes, one after the other


def run(folder, *words: str) -> dict:
    typed = ["recipe=fake", "tracker=[jsonl]", "checkpoint.every=0", *words]
    return start(check(compose(typed)), typed, out=folder)


def accuracy(summary: dict, when: str) -> float:
    return summary[f"eval_{when}"]["accuracy"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_table_names_nearly_every_digit_afterwards(tmp_path, seed):
    summary = run(tmp_path / "run", f"seed={seed}")
    assert accuracy(summary, "before") <= 0.2
    assert accuracy(summary, "after") >= 0.9


def test_another_group_size_advantage_or_seed_gives_other_weights(tmp_path):
    words = ["seed=0", "seed=1", "algorithm.group_size=4", "advantage=rloo", "optim.lr=0.1"]
    found = {run(tmp_path / str(n), "steps=6", word)["weights_sha256"] for n, word in enumerate(words)}
    assert len(found) == len(words)
