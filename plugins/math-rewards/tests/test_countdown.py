from __future__ import annotations

import time

import pytest
from math_attempts import attempt_of
from trinity_math_rewards.countdown import CountdownReward
from trinity_math_rewards.countdown_tasks import Countdown, side
from trinity_math_rewards.rows import read_jsonl

from trinity_core.errors import ConfigError, DataError
from trinity_core.types import Invalid, Ok


def score(text: str, nums=(2, 3, 4), target=20):
    return CountdownReward()(attempt_of(text, nums=list(nums), target=target))


@pytest.mark.parametrize(
    "text",
    [
        "<answer>(2 + 3) * 4</answer>",
        "<answer>4*(3+2) = 20</answer>",
        "\\boxed{4 \\times (2 + 3)}",
        "\\boxed{4 \\cdot \\left(2+3\\right)}",
        "4 × (2 + 3)",
        "First 2+3 = 5, so (2+3)*4 = 20",
        "<answer>[2+3]*4</answer>",
        "<answer>$4*(3+2)$</answer>",
        "<answer>-(2+3)*-4</answer>",
    ],
)
def test_an_expression_over_all_numbers_that_makes_the_target_counts(text):
    assert score(text) == Ok(1.0, {"legal": 1.0})


@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ("<answer>2 + 3 + 4</answer>", 1.0),
        ("<answer>4 * 5</answer>", 0.0),
        ("<answer>20</answer>", 0.0),
        ("<answer>2 + 3 * 4 * 1</answer>", 0.0),
        ("<answer>(2 + 3) * 4 + 2 - 2</answer>", 0.0),
        ("<answer>4 * 3 + 4 * 2</answer>", 0.0),
        ("<answer>2 ** 4 + 3</answer>", 0.0),
        ("<answer>24 - 3</answer>", 0.0),
        ("<answer>2(3)(4)</answer>", 0.0),
        ("<answer>(2 + 3) // 4</answer>", 0.0),
        ("<answer>2.0 * 3 * 4</answer>", 0.0),
        ("<answer>2 / (3 - 3) * 4</answer>", 0.0),
        ("<answer>abs(2 + 3) * 4</answer>", 0.0),
        ("<answer>__import__('os').abort()</answer>", 0.0),
        ("<answer>True + 3 + 4</answer>", 0.0),
        ("<answer></answer>", 0.0),
        ("no idea", 0.0),
        ("", 0.0),
    ],
)
def test_anything_else_does_not(text, legal):
    assert score(text) == Ok(0.0, {"legal": legal})


def test_division_is_exact():
    # 1 / 3 * 3 is 1 in fractions; in floats 1 / 49 * 49 is not
    assert score("<answer>1/49*49</answer>", (1, 49, 49), 1).value == 1.0
    assert score("\\boxed{\\frac{12}{4} + 1}", (12, 4, 1), 4).value == 1.0
    assert score("\\boxed{8/\\frac{4}{2}}", (8, 4, 2), 4).value == 1.0


def test_a_number_given_twice_is_used_twice():
    assert score("<answer>5 * 5</answer>", (5, 5), 25).value == 1.0
    assert score("<answer>5 * 5</answer>", (5,), 25).value == 0.0


def test_the_gold_answer_stands_in_for_a_missing_target():
    attempt = attempt_of("<answer>5 * 5</answer>", "25", nums=[5, 5])
    assert CountdownReward()(attempt).value == 1.0


@pytest.mark.parametrize(
    "data", [{}, {"nums": [1, 2]}, {"target": 3}, {"nums": ["a"], "target": 3}, {"nums": [1], "target": "x"}]
)
def test_a_task_without_numbers_or_target_is_invalid(data):
    assert isinstance(CountdownReward()(attempt_of("<answer>1+2</answer>", **data)), Invalid)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "1+" * 50_000,
        "<answer>" + "(" * 150 + "1" + ")" * 40 + "</answer>",
        "<answer>" + "-" * 190 + "1</answer>",
        "9/" * 3000,
    ],
)
def test_hostile_expressions_are_wrong_and_quick(text):
    started = time.perf_counter()
    assert score(text).value == 0.0
    assert time.perf_counter() - started < 2.0


def test_every_published_solution_is_right(data):
    for split in ("train", "test"):
        rows = [row for row, _ in read_jsonl(data / "countdown", split, None)]
        assert all(
            score(f"<answer>{row['solution']}</answer>", row["nums"], row["target"]).value == 1.0 for row in rows
        )
        assert len(Countdown(path=str(data / "countdown"), split=split).open()) == len(rows)


# --- the taskset


def test_generated_problems_are_the_same_every_time_and_any_size_starts_alike():
    first, second = Countdown(size=30).open(), Countdown(size=60).open()
    assert [first[i] for i in range(30)] == [second[i] for i in range(30)]
    assert [t.data for t in Countdown(size=30, seed=1).open().tasks] != [t.data for t in first.tasks]


def _solvable(nums: list[int], target: int) -> bool:
    from fractions import Fraction

    def reach(pool: list[Fraction]) -> bool:
        if len(pool) == 1:
            return pool[0] == target
        for i, left in enumerate(pool):
            for j, right in enumerate(pool):
                if i != j:
                    rest = [x for k, x in enumerate(pool) if k not in (i, j)]
                    results = [left + right, left - right, left * right] + ([left / right] if right else [])
                    if any(reach([*rest, result]) for result in results):
                        return True
        return False

    return reach([Fraction(n) for n in nums])


def test_every_generated_problem_has_a_solution():
    tasks = Countdown(size=40).open().tasks
    assert all(_solvable(task.data["nums"], task.data["target"]) for task in tasks)
    assert all(task.answer == str(task.data["target"]) and 1 <= task.data["target"] <= 100 for task in tasks)


def test_no_problem_is_in_both_splits():
    problems = {
        s: {(tuple(sorted(t.data["nums"])), t.data["target"]) for t in Countdown(size=300, split=s).open().tasks}
        for s in ("train", "test")
    }
    assert not problems["train"] & problems["test"]
    assert all(side(list(nums), target) == s for s in problems for nums, target in problems[s])


def test_a_prompt_may_hold_other_braces():
    task = Countdown(size=1, prompt=r"{nums} {target} \boxed{}").open()[0]
    assert task.messages[0]["content"].endswith(r"\boxed{}")


def test_what_cannot_be_generated_is_refused():
    for bad in ({"num_min": 5}, {"num_max": 9}, {"size": 0}, {"prompt": "{nums}"}, {"largest": 1}):
        with pytest.raises(ConfigError, match="countdown"):
            Countdown(**bad)


def test_a_bad_row_is_named_with_its_line(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text('{"nums": [1, 2], "target": 3}\n{"nums": "1 2", "target": 3}\n')
    with pytest.raises(DataError, match=r"x\.jsonl:2"):
        Countdown(path=str(file)).open()
