"""People say which of two answers is better."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trinity_core.builtins.operators.best_worst import paired
from trinity_core.errors import ConfigError, DataError
from trinity_core.protocols import Operator, RunContext
from trinity_core.rollout import questions
from trinity_core.types import Attempt, Fault, Group

_POLL_S = 0.2
log = logging.getLogger("trinity")


@dataclass(frozen=True)
class AskPeople(Operator):
    """Two of a group's answers become a question to people, and their choice a pair of *chosen* and *rejected*.

    A question is a file ``NAME.question.json`` (task, two candidates, ids); its answer is ``NAME.answer.json`` beside it,
    ``{"chosen": 0}``, ``{"chosen": 1}`` or ``{"skip": true}``, put there whole (written aside and renamed) by
    ``trinity judge FOLDER`` or by any program. The name is a hash of the draw and the two texts: a resumed run that samples
    them again finds the answer and asks nobody.

    Candidates are the first two samples with different texts. A group without two is dropped, as is one that was skipped or
    not answered in time; it gives its place back. A group that was given and not sampled stays. No reward is needed
    (``reward=[]``). Under ``explorer.order=lockstep`` the draws behind a question wait for it, so questions come one by one;
    ``arrival`` asks all that are due at once. ``trainer.wait_s`` bounds how long a step waits for its groups.
    """

    beside: ClassVar[tuple[str, ...]] = ("algorithm=dpo",)
    makes_pairs: ClassVar[bool] = True

    path: str | None = None
    """Folder of the questions; null: ``questions`` in the run folder."""
    timeout_s: float = 1800.0
    """Seconds that people have for one question."""

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise ConfigError(f"operators: ask_people.timeout_s: {self.timeout_s} leaves nobody time to answer")

    def open(self, run: RunContext) -> Desk:
        folder = Path(self.path).expanduser() if self.path is not None else run.dir / questions.FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"operators: ask_people.path: {folder} cannot be made ({error.strerror})") from error
        return Desk(folder, self.timeout_s, run)


class Desk(Operator):
    """Where questions lie and answers arrive."""

    def __init__(self, folder: Path, timeout_s: float, run: RunContext) -> None:
        self.folder, self.timeout_s, self.run = folder, timeout_s, run
        self._announced = False

    async def __call__(self, group: Group) -> list[Group]:
        if not any(attempt.role == "sample" for attempt in group.attempts):
            return [group]
        pair = candidates(group)
        if pair is None:
            return self._dropped(group, "no two of its answers differ")
        texts = [said(group, group.attempts[index]) for index in pair]
        name = name_of(group, texts)
        answer = await self._answer(name, question_of(group, pair, texts))
        if answer is None:
            return self._dropped(group, f"nobody answered {name} within {self.timeout_s:g} s")
        self.run.log("ask_people/skipped", float(answer == "skip"))
        if answer == "skip":
            return self._dropped(group, f"people skipped {name}")
        chosen = int(answer)
        return [paired(group, pair[chosen], pair[1 - chosen])]

    async def _answer(self, name: str, question: dict[str, Any]) -> str | None:
        """*0*, *1* or *skip*; ``None`` if nobody answered in time."""
        place = questions.question_path(self.folder, name)
        deadline, complaint = time.monotonic() + self.timeout_s, ""
        if not questions.answer_path(self.folder, name).exists():
            questions.write(place, {"name": name, **question})
            if not self._announced:
                log.warning("people are asked: trinity judge %s --wait %g", self.folder, self.timeout_s)
                self._announced = True
        while True:
            try:
                answer = questions.read_answer(self.folder, name)
            except DataError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    log.warning("%s. It counts as no answer", complaint)
                answer = None
            if answer is not None:
                return answer
            if time.monotonic() >= deadline:
                place.unlink(missing_ok=True)  # nobody should answer in vain
                return None
            await asyncio.sleep(_POLL_S)

    def _dropped(self, group: Group, reason: str) -> list[Group]:
        log.warning("ask_people: group %s is dropped: %s", group.id, reason)
        self.run.log("ask_people/dropped", 1.0)
        return []


def candidates(group: Group) -> tuple[int, int] | None:
    """The first two samples that were played to an end and say different things."""
    usable = [
        index
        for index, attempt in enumerate(group.attempts)
        if attempt.role == "sample" and attempt.experiences and not isinstance(attempt.score, Fault)
    ]
    for second in usable[1:]:
        if said(group, group.attempts[second]) != said(group, group.attempts[usable[0]]):
            return usable[0], second
    return None


def said(group: Group, attempt: Attempt) -> str:
    """What people read of an attempt: the reply, or the conversation behind the task's messages where it has several turns."""
    more = attempt.messages[len(group.task.messages) :]
    if len(more) < 2:
        return attempt.text
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in more)


def question_of(group: Group, pair: tuple[int, int], texts: Sequence[str]) -> dict[str, Any]:
    return {
        "group": group.id,
        "taskset": group.slot,
        "row": group.row,
        "draw": group.draw,
        "task": [{"role": m.get("role"), "content": m.get("content")} for m in group.task.messages],
        "candidates": list(texts),
        "attempts": list(pair),
    }


def name_of(group: Group, texts: Sequence[str]) -> str:
    """The same for the same draw and texts, in whatever run and after whatever crash."""
    words = json.dumps([group.id.rpartition("/")[2], *texts])
    return f"{group.draw:06d}-{hashlib.blake2b(words.encode(errors='surrogatepass'), digest_size=8).hexdigest()}"
