"""Data in a file, row by row."""

from __future__ import annotations

import json
import logging

import pytest

from trinity_core.builtins.rewards.exact import Exact
from trinity_core.builtins.tasksets.conversations import Conversations
from trinity_core.builtins.tasksets.numbers import Numbers
from trinity_core.errors import ConfigError, DataError
from trinity_core.testing.fakes import Digits, FakeAttempt, FakeRun

U, A, S = ({"role": role, "content": text} for role, text in (("user", "hi"), ("assistant", "ho"), ("system", "be")))


def a(text: str) -> dict:
    return {"role": "assistant", "content": text}


def file(tmp_path, *rows, name="rows.jsonl"):
    path = tmp_path / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def tasks(tmp_path, *rows, run=None, **options):
    return list(Conversations(path=file(tmp_path, *rows), **options).open(run or FakeRun()))


# --- forms ------------------------------------------------------------------------------------------------------------


def test_of_messages_the_last_turn_is_learned_or_all_of_the_assistants(tmp_path):
    row = {"messages": [S, U, a("1"), U, a("2")]}
    (last,) = tasks(tmp_path, row)
    assert (list(last.messages), last.given) == ([S, U, a("1"), U], {"expert": [a("2")]})
    (every,) = tasks(tmp_path, row, turns="all")
    assert (list(every.messages), every.given) == ([S, U], {"expert": [a("1"), U, a("2")]})


def test_a_prompt_and_its_response(tmp_path):
    texts, lists = tasks(tmp_path, {"prompt": "hi", "response": "ho"}, {"prompt": [S, U], "response": [A]})
    assert (list(texts.messages), texts.given) == ([U], {"expert": [A]})
    assert (list(lists.messages), lists.given) == ([S, U], {"expert": [A]})


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "hi", "chosen": "yes", "rejected": "no"},
        {"prompt": [U], "chosen": [a("yes")], "rejected": [a("no")]},
        {"prompt": "hi", "chosen": [U, a("yes")], "rejected": [U, a("no")]},
        {"chosen": [U, a("yes")], "rejected": [U, a("no")]},
    ],
)
def test_a_preference_in_every_shape_that_is_in_use(tmp_path, row):
    (one,) = tasks(tmp_path, row)
    assert (list(one.messages), one.given) == ([U], {"chosen": [a("yes")], "rejected": [a("no")]})


def test_conversations_that_share_turns_and_differ_in_the_users_words_part_before_the_assistants(tmp_path):
    rows = {"chosen": [U, A, U, a("x")], "rejected": [U, A, {"role": "user", "content": "other"}, a("y")]}
    (one,) = tasks(tmp_path, rows)
    assert list(one.messages) == [U] and one.given["chosen"] == [A, U, a("x")]


def test_a_text_has_no_messages(tmp_path):
    (one,) = tasks(tmp_path, {"text": "once upon\na time"})
    assert (one.messages, one.given) == ((), {"expert": "once upon\na time"})


def test_fields_may_have_other_names_and_more_of_them(tmp_path):
    row = {"question": "hi", "output": "ho", "answer": "4", "tools": [{"name": "add"}], "id": 7}
    (one,) = tasks(tmp_path, row, prompt="question", response="output")
    assert one.given == {"expert": [A]} and one.answer == "4" and one.data == {"tools": [{"name": "add"}]}


def test_a_system_message_is_added_where_there_is_none(tmp_path):
    rows = ({"prompt": "hi", "response": "ho"}, {"prompt": [S, U], "response": "ho"})
    assert [t.messages[0]["content"] for t in tasks(tmp_path, *rows, system="you are")] == ["you are", "be"]


@pytest.mark.parametrize(
    ("row", "roles"),
    [
        ({"prompt": "hi", "chosen": "a", "rejected": "b"}, {"chosen", "rejected"}),
        ({"messages": [U, A]}, {"expert"}),
        ({"text": "abc"}, {"expert"}),
    ],
)
def test_what_it_gives_is_known_before_it_is_opened(tmp_path, row, roles):
    config = Conversations(path=file(tmp_path, row))
    assert config.gives() == roles == config.open(FakeRun()).gives()


# --- which rows --------------------------------------------------------------------------------------------------------


def test_splits_share_no_prompt_and_the_share_is_kept(tmp_path):
    rows = [{"prompt": f"question {n}", "response": "yes"} for n in range(1000)]
    found = {
        split: {t.messages[0]["content"] for t in tasks(tmp_path, *rows, split=split)} for split in ("train", "test")
    }
    assert not found["train"] & found["test"] and len(found["train"] | found["test"]) == 1000
    assert 70 <= len(found["test"]) <= 130  # 100 expected, standard deviation 9.5


def test_a_folder_has_a_file_for_each_split(tmp_path):
    for split in ("train", "test"):
        file(tmp_path, {"prompt": split, "response": "yes"}, name=f"{split}.jsonl")
    one = Conversations(path=str(tmp_path), split="test").open(FakeRun())
    assert [t.messages[0]["content"] for t in one] == ["test"]
    with pytest.raises(DataError, match=r"all\.jsonl: no such file"):
        Conversations(path=str(tmp_path)).open(FakeRun())


def test_a_limit_takes_the_first_rows_of_the_split(tmp_path):
    rows = [{"text": f"text {n}"} for n in range(5)]
    assert [t.given["expert"] for t in tasks(tmp_path, *rows, "", limit=2)] == ["text 0", "text 1"]


# say: <|user|> h i <|end|> <|assistant|> h o <|end|> = 8 tokens; with "hooo" 10
LONG = ({"prompt": "hi", "response": "ho"}, {"prompt": "hi", "response": "hooo"})


def test_a_row_that_is_too_long_is_refused_and_never_cut(tmp_path):
    assert len(tasks(tmp_path, *LONG, max_tokens=10)) == 2
    with pytest.raises(
        DataError, match=r"1 of 2 rows have more than max_tokens=9 tokens, first .*rows\.jsonl:2 with 10"
    ):
        tasks(tmp_path, *LONG, max_tokens=9)


def test_rows_that_are_too_long_can_be_left_out_and_are_counted(tmp_path, caplog):
    run = FakeRun()
    with caplog.at_level(logging.WARNING, logger="trinity"):
        (one,) = tasks(tmp_path, *LONG, max_tokens=9, overlong="drop", run=run)
    assert one.given["expert"] == [A]
    assert run.logged == {"conversations/dropped": [1.0]} and "left out" in caplog.text
    with pytest.raises(DataError, match="no row is left"):
        tasks(tmp_path, *LONG, max_tokens=3, overlong="drop")


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "expected an object, got a list"),
        ({"question": "hi"}, "has the fields question. Expected one of: chosen and rejected; messages; prompt and response; text"),
        ({"messages": []}, "messages must be a list of messages"),
        ({"messages": [U]}, "messages end with the user"),
        ({"messages": [A]}, "begin with the assistant"),
        ({"messages": [U, {"role": "assistant"}]}, 'expected {"role": …, "content": text}'),
        ({"messages": [U, a("")]}, "would teach silence"),
        ({"prompt": "", "response": "ho"}, "prompt must be a text or a list of messages, and not empty"),
        ({"prompt": "hi", "response": [U]}, "response must be the assistant's answer"),
        ({"prompt": "hi", "response": 4}, "response must be a text or a list of messages"),
        ({"prompt": "hi", "chosen": "same", "rejected": "same"}, "are the same"),
        ({"chosen": [U, a("x")], "rejected": [S, a("y")]}, "share no message"),
        ({"text": " "}, "text must be a text, and not empty"),
        ({"prompt": "hi", "response": "ho", "answer": ""}, "answer must be a text, and not empty"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_read_is_named_by_file_and_line(tmp_path, row, message):
    with pytest.raises(DataError) as caught:
        tasks(tmp_path, "", row)
    assert message in str(caught.value) and "rows.jsonl:2" in str(caught.value)


def test_a_file_has_one_form(tmp_path):
    with pytest.raises(DataError, match=r"rows\.jsonl:2: a row of texts in a file that begins with messages"):
        tasks(tmp_path, {"messages": [U, A]}, {"text": "abc"})


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no rows"):
        tasks(tmp_path, "", " ")
    with pytest.raises(DataError, match="holds no rows"):
        Conversations(path=file(tmp_path)).gives()


def test_a_split_without_a_row_is_refused(tmp_path):
    with pytest.raises(DataError, match="no row is in the split 'test'"):
        tasks(tmp_path, {"text": "abc"}, split="test", test_share=0.0)


@pytest.mark.parametrize("path", ["no/such.jsonl", "sample/none"])
def test_a_path_that_leads_nowhere_says_what_to_give(path):
    with pytest.raises(DataError, match="no such"):
        Conversations(path=path).gives()


@pytest.mark.parametrize(("field", "value"), [("limit", 0), ("max_tokens", 0), ("test_share", 1.5)])
def test_a_number_that_means_nothing_is_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        Conversations(**{field: value})


# --- what ships, and the other tasksets ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "size", "roles"),
    [("sample", 24, {"expert"}), ("sample/preferences", 16, {"chosen", "rejected"}), ("sample/texts", 8, {"expert"})],
)
def test_the_samples_can_be_read(path, size, roles):
    live = Conversations(path=path).open(FakeRun())
    assert len(live) == size and all(set(task.given) == roles for task in live)
    assert len({json.dumps([task.messages, task.given]) for task in live}) == size


@pytest.mark.parametrize("kind", ["largest", "sum", "first_letter", "sort"])
def test_numbers_demonstrate_what_the_strict_reward_calls_right_and_reject_what_it_calls_wrong(kind):
    live, plain = Numbers(kind=kind, size=200, demonstrations=True, preferences=True), Numbers(kind=kind, size=200)
    for task, bare in zip(live, plain, strict=True):
        assert (task.messages, task.answer) == (bare.messages, bare.answer) and not bare.given
        scores = {role: Exact()(FakeAttempt(m[0]["content"], task=task)) for role, m in task.given.items()}
        assert scores == {"expert": 1.0, "chosen": 1.0, "rejected": 0.0}
    assert [t.given for t in live] == [t.given for t in live], "a wrong answer is drawn from seed and row"


def test_wrong_answers_are_of_the_kind_of_the_right_one():
    for task in Numbers(kind="sort", size=50, preferences=True):
        said = {role: task.given[role][0]["content"].split(", ") for role in ("chosen", "rejected")}
        assert sorted(said["chosen"]) == sorted(said["rejected"])
    for task in Numbers(kind="largest", size=50, preferences=True):
        assert task.given["rejected"][0]["content"] in task.messages[-1]["content"]


@pytest.mark.parametrize("taskset", [Numbers, Digits])
def test_a_taskset_gives_only_what_it_is_told_to(taskset):
    assert taskset().gives() == frozenset()
    assert taskset(demonstrations=True).gives() == {"expert"} == set(taskset(demonstrations=True)[0].given)
    assert taskset(preferences=True).gives() == {"chosen", "rejected"} == set(taskset(preferences=True)[0].given)
