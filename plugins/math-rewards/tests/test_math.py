from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from math_attempts import attempt_of
from trinity_math_rewards.answers import last_boxed, last_expression, marked_answer
from trinity_math_rewards.gsm8k import gold_of
from trinity_math_rewards.math import Accuracy, Math, MathBoxed
from trinity_math_rewards.reading import equal
from trinity_math_rewards.rows import read_jsonl

from trinity_core.types import Invalid, Ok


def value(reward, text: str, gold: str | None) -> float:
    score = reward(attempt_of(text, gold))
    assert isinstance(score, Ok), score
    return score.value


# --- where the answer stands


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {3}", "3"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"} \boxed{1}", "1"),
        (r"{ \boxed{1}", "1"),
        (r"\boxed{a \boxed{b} c}", r"a \boxed{b} c"),
        ("<answer>4</answer>", "4"),
        (r"<answer>\boxed{4} apples</answer>", "4"),
        (r"\boxed{3} <answer>4</answer>", "4"),
        (r"<answer>4</answer> \boxed{3}", "3"),
        ("<answer>4</answer> <answer>5", "4"),
        ("no answer", None),
        ("</answer>4<answer>", None),
    ],
)
def test_the_last_marked_answer_that_closes_counts(text, answer):
    assert marked_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("She has 5 apples, then 1,250.", "1,250"),
        ("so 3 - 10 = -7", "-7"),
        ("from 3-4", "4"),
        ("it costs $18.50!", "$18.50"),
        ("it is 3/4 of it", "3/4"),
        ("about 50%", "50%"),
        (r"thus $x = 3$.", "x = 3"),
        (r"thus \(\frac{1}{2}\).", r"\frac{1}{2}"),
        (r"first $x=2$, then 9", "9"),
        ("none at all", None),
    ],
)
def test_without_a_mark_the_last_number_or_expression_counts(text, answer):
    assert last_expression(text) == answer


def test_unmarked_right_answers_are_flexible_not_strict():
    """REW-05: the strict and the flexible verdict are both logged."""
    assert Math()(attempt_of("It is 18.", "18")) == Ok(1.0, {"strict": 0.0, "flexible": 1.0})
    assert MathBoxed()(attempt_of("It is 18.", "18")) == Ok(0.0, {"strict": 0.0, "flexible": 1.0})
    assert MathBoxed()(attempt_of("<answer>18</answer>", "18")).value == 0.0
    assert MathBoxed()(attempt_of("\\boxed{18}", "18")) == Ok(1.0, {"strict": 1.0, "flexible": 1.0})


def test_a_wrong_box_is_not_saved_by_a_right_number_after_it():
    assert value(Math(), "\\boxed{17}, that is 18 minus 1, not 18", "18") == 0.0


def test_another_tag_can_mark_the_answer():
    assert value(Math(tag="final"), "<final>4</final> 5", "4") == 1.0
    assert value(Math(tag=""), "<answer>4</answer> 5", "4") == 0.0


# --- direction, gold


def test_prediction_and_gold_are_the_right_way_round():
    """math-verify is not symmetric: it may turn the gold inequality into a set, never the predicted one."""
    assert equal(gold="1 < x < 2", prediction="(1,2)", digits=6)
    assert not equal(gold="(1,2)", prediction="1 < x < 2", digits=6)
    assert value(Math(), r"\boxed{(1,2)}", "1 < x < 2") == 1.0
    assert value(Math(), r"\boxed{1 < x < 2}", "(1,2)") == 0.0


@pytest.mark.parametrize("gold", [None, "", "   ", "???", "\\frac{", "1/0", "()"])
@pytest.mark.parametrize("reward", [Math(), MathBoxed()])
def test_a_gold_answer_that_cannot_be_read_is_invalid_never_zero(reward, gold):
    score = reward(attempt_of("\\boxed{18}", gold))
    assert isinstance(score, Invalid) and ("gold answer" in score.reason)


@pytest.mark.parametrize("gold", [None, "", "  "])
def test_accuracy_without_gold_is_invalid(gold):
    assert isinstance(Accuracy()(attempt_of("18", gold)), Invalid)


def test_a_prediction_that_cannot_be_read_is_wrong_not_invalid():
    assert value(Math(), "\\boxed{\\frac{}", "18") == 0.0
    assert value(Math(), "", "18") == 0.0


# --- accuracy


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("The answer is Paris.", "paris", 1.0),
        ("I think a while.\n\n**Answer: Paris**", "Paris", 1.0),
        ("\\boxed{\\text{Paris}}", "Paris", 1.0),
        ("<answer>Paris</answer> is in France", "Paris", 1.0),
        ("Lyon", "Paris", 0.0),
        ("Paris is not the answer, Lyon is", "Paris", 0.0),
        ("seat", "east", 0.0),
        ("\\boxed{seat}", "\\text{east}", 0.0),
        ("So the total is 1,000 euros", "1000", 1.0),
        ("\\boxed{\\frac{1}{2}}", "0.5", 1.0),
        ("\\boxed{17} no, 18", "18", 0.0),
        ("ﬁne  words", "fine words", 1.0),
    ],
)
def test_accuracy_matches_text_or_mathematics(text, gold, expected):
    assert value(Accuracy(), text, gold) == expected


# --- regressions of reward code


def test_it_works_off_the_main_thread():
    """REW-01, REW-02: no signal is used, so a thread gives what the main thread gives."""
    texts = [f"\\boxed{{{n}}}" for n in range(40)]
    with ThreadPoolExecutor(4) as pool:
        scores = list(pool.map(lambda text: Math()(attempt_of(text, "7")).value, texts))
    assert scores == [float(n == 7) for n in range(40)]
    assert threading.current_thread() is threading.main_thread()


def test_it_works_in_another_process():
    with ProcessPoolExecutor(1) as pool:
        assert pool.submit(Math(), attempt_of("\\boxed{7}", "7")).result() == Ok(1.0, {"strict": 1.0, "flexible": 1.0})
    assert pickle.loads(pickle.dumps(Math(digits=3))) == Math(digits=3)


def test_the_last_turn_is_scored_not_the_first():
    """REW-02: the final text, whatever the conversation began with."""
    attempt = attempt_of("\\boxed{2}", "2")
    attempt.messages = [{"role": "assistant", "content": "\\boxed{1}"}, {"role": "assistant", "content": "\\boxed{2}"}]
    assert Math()(attempt).value == 1.0


def test_scores_keep_number_and_order_around_an_unreadable_item():
    """REW-03: the item in the middle shifts nobody, and 137 is 137."""
    golds = ["137", "???", "1", "37"]
    scores = [Math()(attempt_of("\\boxed{137}", gold)) for gold in golds]
    assert [getattr(score, "value", None) for score in scores] == [1.0, None, 0.0, 0.0]


def test_the_same_text_gets_the_same_score():
    attempt = attempt_of("we see \\boxed{\\frac{2}{4}}", "0.5")
    assert {Math()(attempt).value for _ in range(20)} == {1.0}


HOSTILE = {
    "long": "7 " * 50_000,
    "open boxes": "\\boxed{" * 15_000,
    "nested boxes": "\\boxed{" * 12_000 + "}" * 12_000,
    "braces": "{" * 50_000 + "}" * 50_000,
    "closing": "}" * 100_000,
    "backslashes": "\\" * 100_000,
    "dollars": "$" * 100_001,
    "parentheses": "\\boxed{" + "(" * 400 + "1" + ")" * 400 + "}",
    "digits": "\\boxed{" + "9" * 100_000 + "}",
    "unicode": "\\boxed{\u0663\u06f4\ud7ff\u202e\u0000𝟓}" * 3_000,
    "tags": "<answer>" * 12_000,
    "tower": "\\boxed{9^{9^{9^{9}}}}",
    "factorials": "\\boxed{(((9!)!)!)!}",
    "power": "\\boxed{(x+y+z)^{9999}}",
    "code": "\\boxed{__import__('os').system('true')}",
    "blanks": "\\boxed" + " " * 100_000,
    "fractions": "\\boxed{" + "\\frac{" * 60 + "1" + "}{2}" * 60 + "}",
}


@pytest.mark.parametrize("reward", [Math(), MathBoxed(), Accuracy()])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_wrong_and_quick(reward, name):
    started = time.perf_counter()
    assert value(reward, HOSTILE[name], "18") == 0.0
    assert time.perf_counter() - started < 3.0


def test_a_box_under_fifty_thousand_braces_is_found():
    assert last_boxed("{" * 50_000 + "\\boxed{5}" + "}" * 50_000)[1] == "5"


def test_every_gsm8k_gold_answer_equals_itself(data):
    """REW-13: agreement with itself on all 8,792 rows; one number off agrees with none."""
    golds = [
        gold_of(row["answer"]) for split in ("train", "test") for row, _ in read_jsonl(data / "gsm8k", split, None)
    ]
    assert len(golds) == 8792
    agreed = {gold: value(Math(), f"... #### \\boxed{{{gold}}}", gold) for gold in set(golds)}
    off = {gold: value(Math(), f"\\boxed{{{float(gold) + 1}}}", gold) for gold in set(golds)}
    assert [gold for gold, score in agreed.items() if score != 1.0] == []
    assert [gold for gold, score in off.items() if score != 0.0] == []
