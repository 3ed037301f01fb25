"""``trinity judge FOLDER``"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trinity_core.commands.arguments import positional
from trinity_core.errors import ConfigError
from trinity_core.rollout import questions

USAGE = """usage: trinity judge FOLDER [--wait SECONDS]

Shows each open question of a run (operator=[ask_people]) and its two answers, and writes down which is better. FOLDER is the
folder of questions, or of the run. One line each from the keyboard or a pipe:

  1  the first is better        s  skip: neither
  2  the second is better       q  stop; what was not answered stays open

--wait SECONDS  when no question is open, wait this long for the next one (default: 0)
Exit code 0, also when nothing was open."""
POLL_S = 0.2
KEYS: dict[str, dict[str, Any]] = {"1": {"chosen": 0}, "2": {"chosen": 1}, "s": {"skip": True}}


def main(argv: Sequence[str]) -> int:
    words = list(argv)
    wait_s = _wait(words)
    found = positional(words, USAGE, ["FOLDER"])
    if found is None:
        return 0
    folder = folder_of(found[0])
    answered = 0
    while (name := _next(folder, wait_s)) is not None:
        question = questions.read_question(folder, name)
        if question is None:
            continue
        show(question)
        key = ask()
        if key == "q":
            break
        if questions.question_path(folder, name).exists():
            questions.write(questions.answer_path(folder, name), KEYS[key])
            answered += 1
        else:
            print("nobody waits for this answer any more: the time was up")
    left = len(questions.waiting(folder))
    print(f"{answered} answered, {left} open")
    return 0


def folder_of(word: str) -> Path:
    """The folder of questions that ``word`` names: itself, or that of a run."""
    path = Path(word)
    if not path.is_dir():
        raise ConfigError(
            f"{word}: no such folder. Name the folder of questions that the run printed, or the run's own"
        )
    inside = path / questions.FOLDER
    if (path / "words.json").exists() and not inside.is_dir():
        raise ConfigError(
            f"{word}: this run asks nobody. A run with operator=[ask_people] does; where it set ask_people.path, name that"
        )
    return inside if inside.is_dir() else path


def _wait(words: list[str]) -> float:
    """Take ``--wait SECONDS`` out of the words."""
    for at, word in enumerate(words):
        if word == "--wait" or word.startswith("--wait="):
            value = word.partition("=")[2] or (words[at + 1] if at + 1 < len(words) else "")
            del words[at : at + (1 if "=" in word else 2)]
            try:
                return float(value)
            except ValueError:
                raise ConfigError(f"--wait: expected seconds, got {value!r}.\n{USAGE}") from None
    return 0.0


def _next(folder: Path, wait_s: float) -> str | None:
    """The first open question, once there is one; ``None`` when there is none for ``wait_s``."""
    deadline = time.monotonic() + wait_s
    while True:
        if names := questions.waiting(folder):
            return names[0]
        if time.monotonic() >= deadline:
            return None
        time.sleep(POLL_S)


def show(question: dict[str, Any]) -> None:
    """The task and both answers; control characters of a model never reach the terminal."""
    lines = [f"\n━━ {question.get('taskset', '')} {question['name']}"]
    lines += [f"{message.get('role')}: {message.get('content')}" for message in question.get("task", ())]
    for number, text in enumerate(question["candidates"], 1):
        lines += [f"\n── {number}", str(text) if str(text).strip() else "(nothing)"]
    print("".join(c for c in "\n".join(lines) if c.isprintable() or c in "\n\t"))


def ask() -> str:
    """*1, 2, s* or *q*; the end of the input is *q*."""
    while True:
        if sys.stdin.isatty():
            print("\nbetter (1, 2, s to skip, q to stop): ", end="", flush=True)
        line = sys.stdin.readline()
        key = line.strip().lower() if line else "q"
        if key in KEYS or key == "q":
            return key
        if key:
            print(f"{key!r}: write 1, 2, s or q{os.linesep}", end="")
