"""Numbers of an evaluation."""

from __future__ import annotations

import json
import math

import pytest

from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.run import start
from trinity_core.run.evaluate import is_right, pass_at_k, summarize, wilson
from trinity_core.types import Attempt, Fault, Group, Ok, Task


def group(*scores: float | str, texts: list[str] | None = None) -> Group:
    attempts = []
    for index, score in enumerate(scores):
        made = Fault(score) if isinstance(score, str) else Ok(score)
        attempts.append(Attempt(score=made, index=index, text=texts[index] if texts else str(index)))
    return Group("g", Task("t", ()), attempts)


def test_the_interval_of_a_proportion_is_wilsons():
    # 8 of 10: centre (.8 + z²/20)/(1 + z²/10), z² = 3.841459; = (.8 + .192073)/1.384146 = .716740
    # half = z/1.384146 · sqrt(.8·.2/10 + 3.841459/400) = 1.416014 · sqrt(.016 + .00960365) = .226577
    low, high = wilson(8, 10)
    assert (low, high) == (pytest.approx(0.716740 - 0.226577, abs=1e-5), pytest.approx(0.716740 + 0.226577, abs=1e-5))
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)


def test_one_right_in_four_has_pass_at_four_of_one():
    assert pass_at_k(4, 1, 4) == 1.0
    # C(3, 2) / C(4, 2) = 3/6
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k(4, 0, 1) == 0.0


def test_a_fault_is_left_out_and_counted_never_taken_as_wrong():
    result = summarize([group(1.0), group("timeout"), group(0.0)])
    assert (result["accuracy"], result["n"], result["unscored"]) == (0.5, 2, 1)


def test_without_any_score_there_is_no_accuracy():
    for played in ([], [group("timeout"), group("timeout")]):
        result = summarize(played)
        assert (result["n"], result["unscored"]) == (0, len(played))
        assert [result[name] for name in ("accuracy", "ci_low", "ci_high", "score")] == [None] * 4


def test_an_evaluation_without_any_score_says_why_and_shows_no_number(tmp_path, capsys):
    words = [
        "recipe=fake", "mode=bench", "tracker=[console,jsonl]", "reward=[]", "eval.limit=3", "eval.attempts=2",
        "+reward@rewards.lost=tests.e2e.user_parts:Unparseable", f"out={tmp_path / 'run'}",
    ]  # fmt: skip
    summary = start(check(compose(words)), words)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (told,) = [line for line in lines if line["event"] == "evaluated"]
    assert (told["accuracy"], told["ci_low"], told["ci_high"], told["n"], told["unscored"]) == (None, None, None, 0, 6)
    assert summary["bench"][0]["accuracy"] is None
    (warning,) = [line["message"] for line in lines if line["event"] == "warned"]
    assert warning.startswith(
        "evaluation of version 0 on digits: none of 6 attempts has a score, so there is no accuracy. 6 times: "
    )
    assert "the gold answer cannot be read" in warning
    shown = capsys.readouterr().out
    assert "digits: none  n = 0  (6 without a score)" in shown and "0.000" not in shown
    from trinity_core.commands.stages import _accuracy
    from trinity_core.commands.sweep import _metric

    assert _metric(summary) == "digits none" and _accuracy(summary["bench"][0]) == "none"


def test_right_is_decided_by_the_first_reward_not_by_the_sum():
    assert not is_right(Ok(1.1, {"math": 0.0, "format": 1.0}))
    assert is_right(Ok(0.9, {"math": 1.0, "format": -1.0}))
    assert is_right(Ok(1.0))


def test_the_majority_answer_counts_for_maj_at_k():
    result = summarize([group(0.0, 1.0, 1.0, texts=["7", "8", "8"]), group(0.0, 1.0, 0.0, texts=["3", "4", "3"])])
    assert result["maj@3"] == 0.5
    assert result["pass@3"] == 1.0
    assert result["accuracy"] == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert math.isfinite(result["ci_low"])
