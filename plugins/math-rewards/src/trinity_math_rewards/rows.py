"""What the tasksets share: rows in memory, JSON Lines with messages that name the line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trinity_core.errors import DataError
from trinity_core.protocols import Taskset
from trinity_core.types import Task


class Rows(Taskset):
    """A live taskset: all tasks in memory."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = list(tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, row: int) -> Task:
        return self.tasks[row]


def task_id(*parts: object) -> str:
    """A short hash of where a task comes from."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:16]


def read_jsonl(path: Path, split: str, limit: int | None) -> Iterator[tuple[dict[str, Any], str]]:
    """Rows of ``path`` (of ``path/<split>.jsonl`` for a folder), each with ``file:line`` for messages. Blank lines are skipped."""
    path = path.expanduser()
    file = path / f"{split}.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise DataError(f"{file}: no such file. Give a .jsonl file, or a folder that holds {split}.jsonl")
    found = 0
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            if limit is not None and found >= limit:
                return
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{file}:{number}: not JSON ({error}). One object a line is expected") from error
            if not isinstance(row, dict):
                raise DataError(f"{file}:{number}: expected an object, got {type(row).__name__}")
            found += 1
            yield row, f"{file}:{number}"
    if not found:
        raise DataError(f"{file}: holds no rows")
