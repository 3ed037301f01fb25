"""Data to learn from, in a file: conversations, answers, preferences, texts."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from trinity_core.errors import ConfigError, DataError
from trinity_core.protocols import RunContext, Taskset
from trinity_core.rollout.given import record
from trinity_core.types import Group, Message, Task

SAMPLES = Path(__file__).parent / "samples"
log = logging.getLogger("trinity")


@dataclass(frozen=True)
class Conversations(Taskset):
    """Rows of a JSON Lines file that bring along what is to be learned; each task is recorded, an evaluation plays it.

    - ``{"messages": […]}``: an expert's turns, the last one or all of the assistant's (``turns``)
    - ``{"prompt": …, "response": …}``: an expert's answer
    - ``{"prompt": …, "chosen": …, "rejected": …}``: a pair; without a prompt it is what the two conversations share
    - ``{"text": …}``: a text, learned whole and without a template (continued pre-training)

    Prompts and answers are texts or lists of messages. All rows have the form of the first. A row may have an ``answer``
    (what a reward compares with in an evaluation) and ``tools`` (what the chat template shows of them).
    """

    beside: ClassVar[tuple[str, ...]] = ("algorithm=sft",)
    """What a run that selects it alone needs beside it, for the conformance kit."""

    path: str = "sample"
    """A ``.jsonl`` file, a folder with ``<split>.jsonl``, or what is shipped here: ``sample`` (24 short conversations),
    ``sample/preferences``, ``sample/texts``."""
    split: Literal["all", "train", "test"] = "all"
    """A file's rows that belong to it; a hash of the prompt (of a text's first line) decides, so none is in both."""
    test_share: float = 0.1
    """Share of a file's rows that are *test*."""
    limit: int | None = None
    """First rows only; null: all."""
    turns: Literal["last", "all"] = "last"
    """Of ``messages``: learn the assistant's last turn, or every one."""
    system: str | None = None
    """System message of rows that have none; null: none."""
    max_tokens: int | None = None
    """Longest sequence, prompt and all, in tokens; null: any."""
    overlong: Literal["refuse", "drop"] = "refuse"
    """A longer row: *refuse* to start, or *drop* it and say how many. None is ever cut."""
    messages: str = "messages"
    """Name of this field in the file; so the others."""
    prompt: str = "prompt"
    """A question."""
    response: str = "response"
    """Its answer."""
    chosen: str = "chosen"
    """The better answer."""
    rejected: str = "rejected"
    """The worse one."""
    text: str = "text"
    """A text."""

    def __post_init__(self) -> None:
        if not 0 <= self.test_share <= 1:
            raise ConfigError(f"conversations.test_share: {self.test_share} is no share. Choose 0 … 1")
        for name in ("limit", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(
                    f"conversations.{name}: {value} rows or tokens hold nothing. Choose 1 or more, or null"
                )

    def gives(self) -> frozenset[str]:
        """Read from the file's first row."""
        row, where = next(self._rows())
        form = self._form(row, where)
        return frozenset({"chosen", "rejected"} if form == "preferences" else {"expert"})

    def open(self, run: RunContext) -> Rows:
        form, tasks = "", []
        for row, where in self._rows():
            form = form or self._form(row, where)
            task = self._task(row, form, where, len(tasks))
            if self._belongs(task, form):
                tasks.append((task, where))
            if self.limit is not None and len(tasks) == self.limit:
                break
        if not tasks:
            raise DataError(f"{self._file()}: no row is in the split {self.split!r} (test_share={self.test_share:g})")
        return Rows([task for task, _ in self._short(tasks, run)], self.gives())

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _file(self) -> Path:
        if self.path == "sample" or self.path.startswith("sample/"):
            file = SAMPLES / f"{self.path.partition('/')[2] or 'conversations'}.jsonl"
            names = ", ".join(f"sample/{one.stem}" for one in sorted(SAMPLES.glob("*.jsonl")))
            if not file.is_file():
                raise DataError(f"{self.path}: no such sample. Samples: sample, {names}")
            return file
        path = Path(self.path).expanduser()
        file = path / f"{self.split}.jsonl" if path.is_dir() else path
        if not file.is_file():
            raise DataError(f"{file}: no such file. Give a .jsonl file, or a folder that holds {self.split}.jsonl")
        return file

    def _rows(self) -> Iterator[tuple[dict[str, Any], str]]:
        """Rows with ``file:line`` for messages; blank lines are skipped."""
        file, found = self._file(), False
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise DataError(f"{file}:{number}: not JSON ({error}). One object a line is expected") from error
                if not isinstance(row, dict):
                    raise DataError(f"{file}:{number}: expected an object, got a {type(row).__name__}")
                found = True
                yield row, f"{file}:{number}"
        if not found:
            raise DataError(f"{file}: holds no rows")

    def _belongs(self, task: Task, form: str) -> bool:
        if self.split == "all" or Path(self.path).expanduser().is_dir():
            return True
        words = task.given["expert"].splitlines()[0] if form == "texts" else json.dumps(task.messages, sort_keys=True)
        share = int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "big") / 2**64
        return (share < self.test_share) == (self.split == "test")

    def _short(self, tasks: list[tuple[Task, str]], run: RunContext) -> list[tuple[Task, str]]:
        """The tasks whose sequences have at most ``max_tokens``."""
        if self.max_tokens is None:
            return tasks
        kept, longer = [], []
        for task, where in tasks:
            group = Group("", task, [])
            try:
                record(group, run.renderer)
            except DataError as error:
                raise DataError(f"{where}: {error}") from error
            most = max(len(e.tokens_T) for attempt in group.attempts for e in attempt.experiences)
            if most <= self.max_tokens:
                kept.append((task, where))
            else:
                longer.append(f"{where} with {most}")
        if not longer:
            return kept
        said = f"{self._file()}: {len(longer)} of {len(tasks)} rows have more than max_tokens={self.max_tokens} tokens, first {longer[0]}"
        if self.overlong == "refuse":
            raise DataError(f"{said}. Raise max_tokens, or leave such rows out: overlong=drop")
        if not kept:
            raise DataError(f"{said}, and no row is left. Raise max_tokens")
        log.warning("%s. They are left out", said)
        run.log("conversations/dropped", len(longer))
        return kept

    # --- from a row to a task -------------------------------------------------------------------------------------------

    def _form(self, row: Mapping[str, Any], where: str) -> str:
        """Which of the forms a row has."""
        forms = {
            "preferences": (self.chosen, self.rejected),
            "messages": (self.messages,),
            "answers": (self.prompt, self.response),
            "texts": (self.text,),
        }
        for form, fields in forms.items():
            if all(field in row for field in fields):
                return form
        expected = "; ".join(" and ".join(fields) for fields in forms.values())
        raise DataError(f"{where}: has the fields {', '.join(row) or 'none'}. Expected one of: {expected}")

    def _task(self, row: Mapping[str, Any], form: str, where: str, number: int) -> Task:
        if (own := self._form(row, where)) != form:
            raise DataError(
                f"{where}: a row of {own} in a file that begins with {form}. Give each form a file, and a taskset"
            )
        prompt: Sequence[Message] = ()
        if form == "texts":
            if not isinstance(row[self.text], str) or not row[self.text].strip():
                raise DataError(f"{where}: {self.text} must be a text, and not empty")
            given: dict[str, Any] = {"expert": row[self.text]}
        elif form == "messages":
            prompt, continuation = self._turns(_messages(row[self.messages], where, self.messages), where)
            given = {"expert": continuation}
        elif form == "answers":
            prompt = _messages(row[self.prompt], where, self.prompt, "user")
            given = {"expert": _reply(row[self.response], prompt, where, self.response)}
        else:
            prompt, given = self._pair(row, where)
        if self.system is not None and form != "texts" and prompt[0]["role"] != "system":
            prompt = [{"role": "system", "content": self.system}, *prompt]
        answer = row.get("answer")
        if answer is not None and (not isinstance(answer, str) or not answer.strip()):
            raise DataError(f"{where}: answer must be a text, and not empty; leave it out where there is none")
        data = {"tools": row["tools"]} if row.get("tools") else {}
        return Task(f"conversations-{number}", tuple(prompt), answer, data, given)

    def _turns(self, messages: list[Message], where: str) -> tuple[list[Message], list[Message]]:
        """What comes before, and what is learned."""
        if messages[-1]["role"] != "assistant":
            raise DataError(
                f"{where}: {self.messages} end with the {messages[-1]['role']}. The last turn must be the assistant's"
            )
        first = next(n for n, message in enumerate(messages) if message["role"] == "assistant")
        at = first if self.turns == "all" else len(messages) - 1
        if at == 0:
            raise DataError(
                f"{where}: {self.messages} begin with the assistant. A message must come before what is learned"
            )
        return messages[:at], messages[at:]

    def _pair(self, row: Mapping[str, Any], where: str) -> tuple[list[Message], dict[str, Any]]:
        names = (self.chosen, self.rejected)
        if self.prompt in row:
            prompt = _messages(row[self.prompt], where, self.prompt, "user")
        else:
            sides = [_messages(row[name], where, name) for name in names]
            shared = next((n for n, (a, b) in enumerate(zip(*sides)) if a != b), min(map(len, sides)))
            while shared and any(len(side) == shared or side[shared]["role"] != "assistant" for side in sides):
                shared -= 1  # what differs begins with the assistant's words
            prompt = sides[0][:shared]
            if not prompt:
                raise DataError(f"{where}: {' and '.join(names)} share no message, and there is no {self.prompt}")
        given = {role: _reply(row[name], prompt, where, name) for role, name in zip(("chosen", "rejected"), names)}
        if given["chosen"] == given["rejected"]:
            raise DataError(f"{where}: {' and '.join(names)} are the same, so there is nothing to prefer")
        return prompt, given


class Rows(Taskset):
    """A live taskset: all tasks in memory."""

    def __init__(self, tasks: Sequence[Task], roles: frozenset[str]) -> None:
        self.tasks, self.roles = list(tasks), roles

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, row: int) -> Task:
        return self.tasks[row]

    def gives(self) -> frozenset[str]:
        return self.roles


def _messages(value: Any, where: str, field: str, role: str | None = None) -> list[Message]:
    """A list of messages; a bare text is one of ``role``."""
    if isinstance(value, str) and role is not None and value.strip():
        return [{"role": role, "content": value}]
    if not isinstance(value, list) or not value:
        raise DataError(f"{where}: {field} must be {'a text or ' if role else ''}a list of messages, and not empty")
    for message in value:
        fits = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not fits or not (isinstance(message.get("content"), str) or message.get("tool_calls")):
            raise DataError(f'{where}: {field}: expected {{"role": …, "content": text}}, got {str(message)[:80]}')
        if message["role"] == "assistant" and not message.get("content") and not message.get("tool_calls"):
            raise DataError(f"{where}: {field}: an assistant's message is empty: it would teach silence")
    return value


def _reply(value: Any, prompt: Sequence[Message], where: str, field: str) -> list[Message]:
    """The assistant's turns; a conversation that begins with the prompt loses it."""
    reply = _messages(value, where, field, "assistant")
    if reply[: len(prompt)] == prompt:
        reply = reply[len(prompt) :]
    if not reply or reply[0]["role"] != "assistant" or reply[-1]["role"] != "assistant":
        raise DataError(f"{where}: {field} must be the assistant's answer, alone or behind the whole prompt")
    return reply
