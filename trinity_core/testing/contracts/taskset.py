"""What every taskset keeps to: a map from row to task, the same every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trinity_core.testing.rules import NotApplicable, require
from trinity_core.testing.subject import opened
from trinity_core.types import Task


def _rows(live: Any) -> list[int]:
    """The first rows, the last and some between: enough to see a fault, few enough for a large set."""
    size = len(live)
    return sorted({*range(min(size, 20)), *range(0, size, max(1, size // 20)), size - 1}) if size else []


def has_tasks(component: Any, tmp: Path) -> None:
    with opened("taskset", component, tmp) as live:
        require(len(live) > 0, "it is empty. The kit needs at least one row: give example(cls, tmp) a small file")


def rows_are_tasks(component: Any, tmp: Path) -> None:
    """Each row is a :class:`Task` whose messages a chat template can render."""
    with opened("taskset", component, tmp) as live:
        for row in _rows(live):
            task = live[row]
            require(isinstance(task, Task), f"[{row}] is a {type(task).__name__}, not a Task")
            require(len(task.messages) > 0, f"[{row}] has no messages")
            for message in task.messages:
                fits = isinstance(message.get("role"), str) and message.get("content") is not None
                require(fits, f"[{row}]: a message needs role and content, got {message!r}")
            require(
                isinstance(task.answer, str | None),
                f"[{row}].answer is {task.answer!r}: a string, or None where there is none",
            )


def same_every_time(component: Any, tmp: Path) -> None:
    """Two lives of one config give the same tasks, in whatever order rows are read."""
    with opened("taskset", component, tmp) as first, opened("taskset", component, tmp) as second:
        require(len(first) == len(second), f"{len(first)} rows, then {len(second)}")
        rows = _rows(first)
        forward = [first[row] for row in rows]
        backward = [second[row] for row in reversed(rows)][::-1]
        require(forward == backward, "the same rows hold different tasks when read again, or in another order")


def ids_differ(component: Any, tmp: Path) -> None:
    with opened("taskset", component, tmp) as live:
        rows = _rows(live)
        ids = [live[row].id for row in rows]
        require(len(set(ids)) == len(ids), "two rows have the same id")


def data_is_plain(component: Any, tmp: Path) -> None:
    """Tasks are stored with their groups: everything in them survives the codec."""
    from trinity_core.codec import pack, unpack
    from trinity_core.types import Group

    with opened("taskset", component, tmp) as live:
        for row in _rows(live):
            group = Group("run/kit", live[row], [])
            require(unpack(pack(group)).task == live[row], f"[{row}] changes when it is stored")


def rows_outside_are_refused(component: Any, tmp: Path) -> None:
    """A row past the end is an :class:`IndexError`, so that ``for task in taskset`` ends."""
    with opened("taskset", component, tmp) as live:
        try:
            live[len(live)]
        except IndexError:
            return
        require(False, f"[{len(live)}] gives a task although len is {len(live)}: raise IndexError")


def no_gold_answer_is_empty(component: Any, tmp: Path) -> None:
    """No answer is an empty string: that would score every empty reply."""
    with opened("taskset", component, tmp) as live:
        answers = [live[row].answer for row in _rows(live)]
        if all(answer is None for answer in answers):
            raise NotApplicable("its tasks have no gold answer")
        empty = [row for row, answer in zip(_rows(live), answers) if answer is not None and not answer.strip()]
        require(not empty, f"rows {empty[:5]} have an empty gold answer: use None where there is none")


RULES = {
    "has tasks": has_tasks,
    "rows are tasks": rows_are_tasks,
    "is the same every time": same_every_time,
    "ids differ": ids_differ,
    "tasks survive the codec": data_is_plain,
    "rows outside are refused": rows_outside_are_refused,
    "no gold answer is empty": no_gold_answer_is_empty,
}
