from __future__ import annotations

import time

import pytest
from math_attempts import attempt_of
from trinity_math_rewards.shape import MathFormat

from trinity_core.errors import ConfigError
from trinity_core.types import Ok

THINK = r"<think>.*?</think>\s*<answer>.*?</answer>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so \\boxed{18}", 1.0),
        ("so \\boxed{\\frac{\\sqrt{2}}{2}} it is\n", 1.0),
        ("\\boxed{1} \\boxed{2}", 0.0),
        ("\\boxed{}", 0.0),
        ("18", 0.0),
        ("\\boxed{18", 0.0),
    ],
)
def test_the_default_format_is_one_box(text, expected):
    assert MathFormat()(attempt_of(text)) == Ok(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a\nb</think><answer>1</answer>", 1.0),
        ("\n <think>a</think>\n<answer>1</answer>\n\n", 1.0),
        ("<think>a</think><answer>1</answer> and more", 0.0),
        ("first <think>a</think><answer>1</answer>", 0.0),
    ],
)
def test_a_pattern_matches_the_whole_text_and_no_final_newline_matters(text, expected):
    """REW-09."""
    assert MathFormat(pattern=THINK)(attempt_of(text)) == Ok(expected)


@pytest.mark.parametrize("text", ["\\boxed{" * 15_000, "{" * 100_000, "\\boxed{" + "{}" * 50_000, "a" * 100_000])
def test_the_default_pattern_is_quick_on_hostile_text(text):
    started = time.perf_counter()
    assert MathFormat()(attempt_of(text)) == Ok(0.0)
    assert time.perf_counter() - started < 2.0


def test_a_broken_pattern_is_refused_with_its_path():
    with pytest.raises(ConfigError, match=r"math_format\.pattern"):
        MathFormat(pattern="(")
