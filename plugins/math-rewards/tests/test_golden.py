"""The golden list: pairs of prediction and gold answer, each with its verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from math_attempts import attempt_of
from trinity_math_rewards.math import Accuracy, Math, MathBoxed

from trinity_core.types import Ok

PAIRS = [
    tuple(line.split("\t"))
    for line in (Path(__file__).parent / "golden.tsv").read_text(encoding="utf-8").splitlines()
    if not line.startswith("//")
]


def test_the_list_is_long_and_has_both_verdicts():
    verdicts = [verdict for _, _, verdict in PAIRS]
    assert len(PAIRS) >= 200 and verdicts.count("wrong") >= 60 and set(verdicts) == {"right", "wrong"}


@pytest.mark.parametrize(("prediction", "gold", "verdict"), PAIRS)
def test_golden(prediction: str, gold: str, verdict: str):
    """REW-15."""
    expected = float(verdict == "right")
    attempt = attempt_of(f"We compute 99 and get \\boxed{{{prediction}}}.", gold)
    assert Math()(attempt) == Ok(expected, {"strict": expected, "flexible": expected})
    score = MathBoxed()(attempt)
    assert isinstance(score, Ok) and score.value == expected


RIGHT = [(prediction, gold) for prediction, gold, verdict in PAIRS if verdict == "right"]
AS_MATHS = [pair for pair in RIGHT if re.search(r"\d|\\(?!text)", pair[1])]
"""Letters alone are text to ``accuracy``: ``ba`` is not ``ab``."""


@pytest.mark.parametrize(("prediction", "gold"), AS_MATHS)
def test_accuracy_accepts_the_mathematics_that_math_accepts(prediction: str, gold: str):
    score = Accuracy()(attempt_of(f"\\boxed{{{prediction}}}", gold))
    assert isinstance(score, Ok) and score.value == 1.0
