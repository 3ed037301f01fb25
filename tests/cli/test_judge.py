"""``trinity judge``: from the keyboard or a pipe."""

from __future__ import annotations

import io
import json

import pytest

from trinity_core.commands import judge
from trinity_core.errors import ConfigError, DataError
from trinity_core.rollout.questions import answer_path, question_path, read_answer, waiting, write


def put(folder, *names: str, texts=("one", "two")) -> None:
    for name in names:
        question = {"name": name, "task": [{"role": "user", "content": "say it"}], "candidates": list(texts)}
        write(question_path(folder, name), question)


def judged(folder, keys: str, monkeypatch, *words: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(keys))
    return judge.main([str(folder), *words])


def answers(folder) -> dict[str, str | None]:
    names = sorted(path.name.removesuffix(".question.json") for path in folder.glob("*.question.json"))
    return {name: read_answer(folder, name) for name in names}


def test_each_line_answers_one_question_in_order(tmp_path, monkeypatch, capsys):
    put(tmp_path, "a", "b", "c")
    assert judged(tmp_path, "1\n2\nS\n", monkeypatch) == 0
    assert answers(tmp_path) == {"a": "0", "b": "1", "c": "skip"}
    assert json.loads(answer_path(tmp_path, "b").read_text()) == {"chosen": 1}
    out = capsys.readouterr().out
    assert "user: say it" in out and "── 1\none" in out and "── 2\ntwo" in out and "3 answered, 0 open" in out


@pytest.mark.parametrize("keys", ["1\nq\n2\n", "1\n"])
def test_stopping_or_the_end_of_the_input_leaves_the_rest_open(keys, tmp_path, monkeypatch, capsys):
    put(tmp_path, "a", "b")
    assert judged(tmp_path, keys, monkeypatch) == 0
    assert waiting(tmp_path) == ["b"] and "1 answered, 1 open" in capsys.readouterr().out


def test_anything_else_is_asked_again(tmp_path, monkeypatch, capsys):
    put(tmp_path, "a")
    judged(tmp_path, "3\nyes\n\n2\n", monkeypatch)
    assert answers(tmp_path) == {"a": "1"} and capsys.readouterr().out.count("write 1, 2, s or q") == 2


def test_nothing_open_is_no_failure(tmp_path, monkeypatch, capsys):
    assert judged(tmp_path, "", monkeypatch, "--wait", "0.1") == 0
    assert "0 answered, 0 open" in capsys.readouterr().out


def test_a_run_folder_leads_to_its_questions(tmp_path, monkeypatch):
    (tmp_path / "questions").mkdir()
    (tmp_path / "words.json").write_text("{}")
    put(tmp_path / "questions", "a")
    judged(tmp_path, "1\n", monkeypatch, "--wait=0")
    assert answers(tmp_path / "questions") == {"a": "0"}


def test_an_answer_to_a_question_that_was_withdrawn_meanwhile_is_not_written(tmp_path, monkeypatch, capsys):
    put(tmp_path, "a")

    class Slow(io.StringIO):
        def readline(self, size: int = -1) -> str:
            question_path(tmp_path, "a").unlink()
            return "1\n"

    monkeypatch.setattr("sys.stdin", Slow())
    judge.main([str(tmp_path)])
    assert not answer_path(tmp_path, "a").exists() and "the time was up" in capsys.readouterr().out


def test_what_a_model_says_cannot_steer_the_terminal(tmp_path, monkeypatch, capsys):
    put(tmp_path, "a", texts=("\x1b[2J\x07red\nline", ""))
    judged(tmp_path, "q\n", monkeypatch)
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out and "[2Jred\nline" in out and "(nothing)" in out


def test_a_folder_without_questions_is_named(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="no such folder"):
        judged(tmp_path / "nowhere", "", monkeypatch)
    (tmp_path / "words.json").write_text("{}")
    with pytest.raises(ConfigError, match="this run asks nobody"):
        judged(tmp_path, "", monkeypatch)
    with pytest.raises(ConfigError, match="expected seconds, got 'soon'"):
        judged(tmp_path, "", monkeypatch, "--wait", "soon")


@pytest.mark.parametrize("text", ["{", "[]", '{"candidates": ["one"]}'])
def test_a_file_that_is_no_question_is_named(text, tmp_path, monkeypatch):
    question_path(tmp_path, "a").write_text(text)
    with pytest.raises(DataError, match=r"a\.question\.json"):
        judged(tmp_path, "1\n", monkeypatch)


def test_help_says_the_keys(capsys):
    assert judge.main(["--help"]) == 0
    assert "2  the second is better" in capsys.readouterr().out
