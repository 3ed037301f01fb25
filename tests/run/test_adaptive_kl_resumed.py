"""An adaptive KL coefficient after a resume: where it had got to, unless another start is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.given_parts import TABLE, resumed, run, steps

WORDS = ("~eval.tasksets.heldout", "algorithm.group_size=4", "algorithm.kl.target=0.5", "algorithm.kl.horizon=100")


def coefficients(folder: Path) -> list[float]:
    return [step["kl/coef"] for step in steps(folder)]


def test_a_resume_goes_on_from_the_coefficient_that_was_reached(tmp_path: Path) -> None:
    run(tmp_path / "whole", *WORDS, "algorithm.kl.coef=0.1", "steps=3")
    run(tmp_path / "run", *WORDS, "algorithm.kl.coef=0.1", "steps=2")
    resumed(tmp_path / "run", "steps=3")
    found = coefficients(tmp_path / "run")
    assert found == coefficients(tmp_path / "whole") and found[2] < found[1] < 0.1


def test_a_coefficient_typed_at_a_resume_is_the_new_start(tmp_path: Path) -> None:
    run(tmp_path / "run", *WORDS, "algorithm.kl.coef=0.1", "steps=2")
    resumed(tmp_path / "run", "algorithm.kl.coef=9", "steps=3")
    resumed(tmp_path / "run", *TABLE, *WORDS, "steps=4")
    # far below the target, 16 attempts: the step after has 0.2 · 16/100 less
    assert coefficients(tmp_path / "run")[2:] == [9.0, pytest.approx(9 * (1 - 0.2 * 16 / 100))]
