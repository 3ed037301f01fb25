"""Questions to people as files: ``NAME.question.json``, and beside it ``NAME.answer.json``.

A question holds ``name, group, taskset, row, draw, task`` (messages) and ``candidates`` (two texts). An answer is
``{"chosen": 0}``, ``{"chosen": 1}`` or ``{"skip": true}``. Both appear whole or not at all. A question that nobody waits for
any more is removed; one that was answered stays.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trinity_core.errors import DataError

QUESTION, ANSWER = ".question.json", ".answer.json"
FOLDER = "questions"
"""Where they lie in a run folder."""


def write(path: Path, value: dict[str, Any]) -> None:
    """Write aside, then rename: whoever looks sees all of it or nothing."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(aside, path)


def question_path(folder: Path, name: str) -> Path:
    return folder / f"{name}{QUESTION}"


def answer_path(folder: Path, name: str) -> Path:
    return folder / f"{name}{ANSWER}"


def waiting(folder: Path) -> list[str]:
    """Names of the questions without an answer, in order."""
    names = sorted(path.name.removesuffix(QUESTION) for path in folder.glob(f"*{QUESTION}"))
    return [name for name in names if not answer_path(folder, name).exists()]


def read_question(folder: Path, name: str) -> dict[str, Any] | None:
    """The question, or ``None`` if nobody waits for it any more. Raises :class:`~trinity_core.errors.DataError`."""
    path = question_path(folder, name)
    try:
        question = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}). Remove it: its run writes it again when it is resumed"
        ) from error
    if not isinstance(question, dict) or len(question.get("candidates", ())) != 2:
        raise DataError(f"{path}: not a question with two candidates. Name the folder that a run wrote")
    return question


def read_answer(folder: Path, name: str) -> str | None:
    """*0*, *1* or *skip*; ``None`` while there is none. Raises :class:`~trinity_core.errors.DataError` for what is no answer."""
    path = answer_path(folder, name)
    try:
        answer = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if isinstance(answer, dict) and answer.get("skip") is True:
        return "skip"
    if isinstance(answer, dict) and answer.get("chosen") in (0, 1) and not isinstance(answer["chosen"], bool):
        return str(answer["chosen"])
    raise DataError(f'{path}: expected {{"chosen": 0}}, {{"chosen": 1}} or {{"skip": true}}, got {str(answer)[:60]}')
