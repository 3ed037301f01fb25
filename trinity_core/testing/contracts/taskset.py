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
            require(
                len(task.messages) > 0 or task.given,
                f"[{row}] has no messages: only a text to be learned can do without",
            )
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


def given_roles_are_announced(component: Any, tmp: Path) -> None:
    """``gives()`` says before a run what its tasks bring along, and every task brings just that."""
    announced = component.gives()
    known = {"expert", "chosen", "rejected"}
    require(
        announced <= known, f"gives() says {', '.join(sorted(announced - known))}: roles are {', '.join(sorted(known))}"
    )
    pair = announced & {"chosen", "rejected"}
    require(len(pair) != 1, f"gives() says {', '.join(pair)} alone: a pair has both sides")
    with opened("taskset", component, tmp) as live:
        for row in _rows(live):
            found = set(live[row].given)
            require(
                found == announced,
                f"[{row}].given has {', '.join(sorted(found)) or 'nothing'}, and gives() says "
                f"{', '.join(sorted(announced)) or 'nothing'}",
            )


def given_data_can_be_learned(component: Any, tmp: Path) -> None:
    """What a task gives becomes attempts whose only action tokens are the assistant's, in the form the policy would say it."""
    from trinity_core.rollout.given import record
    from trinity_core.testing.fakes import FakeRun
    from trinity_core.types import Group, Origin

    if not component.gives():
        raise NotApplicable("its tasks are played; they bring nothing along")
    renderer = FakeRun(dir=tmp).renderer
    with opened("taskset", component, tmp) as live:
        for row in _rows(live):
            group = Group("run/kit", live[row], [])
            record(group, renderer)
            require(bool(group.attempts), f"[{row}] gives no attempt")
            for attempt in group.attempts:
                require(attempt.num_actions > 0, f"[{row}]: the {attempt.role} attempt has nothing to learn")
                for experience in attempt.experiences:
                    told = set(experience.origin_T[experience.action_T].tolist())
                    require(told == {int(Origin.TARGET)}, f"[{row}]: the {attempt.role} attempt holds sampled tokens")
            for chosen, rejected in group.pairs:
                sides = [group.attempts[side].experiences[0].tokens_T.tolist() for side in (chosen, rejected)]
                require(sides[0] != sides[1], f"[{row}]: chosen and rejected are the same: there is nothing to prefer")


RULES = {
    "has tasks": has_tasks,
    "rows are tasks": rows_are_tasks,
    "is the same every time": same_every_time,
    "ids differ": ids_differ,
    "tasks survive the codec": data_is_plain,
    "rows outside are refused": rows_outside_are_refused,
    "no gold answer is empty": no_gold_answer_is_empty,
    "given roles are announced": given_roles_are_announced,
    "given data can be learned": given_data_can_be_learned,
}
