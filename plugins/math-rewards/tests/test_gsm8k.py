from __future__ import annotations

import sys

import pytest
from math_attempts import attempt_of
from trinity_math_rewards.gsm8k import SYSTEM, Gsm8k, gold_of
from trinity_math_rewards.math import Math

from trinity_core.errors import DataError


@pytest.mark.parametrize(
    ("answer", "gold"), [("a #### 18", "18"), ("#### 1 #### 1,250", "1250"), ("x\n#### $5 ", "5"), ("####-3\n", "-3")]
)
def test_the_gold_answer_follows_the_last_hashes(answer, gold):
    assert gold_of(answer) == gold


def test_the_sample_has_24_problems_and_two_disjoint_splits():
    train, test = Gsm8k(path="sample").open(), Gsm8k(path="sample", split="test").open()
    assert (len(train), len(test)) == (16, 8)
    assert not {t.messages[-1]["content"] for t in train.tasks} & {t.messages[-1]["content"] for t in test.tasks}
    for task in train.tasks + test.tasks:
        assert [m["role"] for m in task.messages] == ["system", "user"] and task.messages[0]["content"] == SYSTEM
        assert Math()(attempt_of(f"\\boxed{{{task.answer}}}", task.answer)).value == 1.0


def test_the_same_rows_every_time_with_ids_of_their_own():
    first, second = Gsm8k(path="sample").open(), Gsm8k(path="sample").open()
    assert (
        first.tasks == second.tasks
        and len({t.id for t in first.tasks + Gsm8k(path="sample", split="test").open().tasks}) == 24
    )


def test_limit_and_system_message():
    tasks = Gsm8k(path="sample", limit=3, system=None).open()
    assert len(tasks) == 3 and [m["role"] for m in tasks[0].messages] == ["user"]


def test_the_full_data_set_reads(data):
    assert len(Gsm8k(path=str(data / "gsm8k")).open()) == 7473
    assert len(Gsm8k(path=str(data / "gsm8k"), split="test").open()) == 1319


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", r":1: not JSON"),
        ("[1]", r":1: expected an object"),
        ('{"question": "q", "answer": "no hashes"}', r":1: needs"),
        ('\n{"answer": "#### 1"}', r":2: needs"),
        ("", "holds no rows"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path, content, says):
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    with pytest.raises(DataError, match=says):
        Gsm8k(path=str(file)).open()


def test_a_missing_file_says_which():
    with pytest.raises(DataError, match=r"nowhere\.jsonl: no such file"):
        Gsm8k(path="nowhere.jsonl").open()


def test_the_hub_without_its_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'trinity-plugin-math-rewards\[hub\]'"):
        Gsm8k().open()


def test_an_unreachable_hub_is_one_message(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")

    def offline(*args, **kwargs):
        raise ConnectionError("no route to host\nand forty more lines")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError, match=r"could not be fetched \(no route to host\)") as caught:
        Gsm8k().open()
    assert "\n" not in str(caught.value) and "path=sample" in str(caught.value)
