"""A taskset of long prompts: the quickstart's questions behind filler text, 256 tokens of SmolLM2 in all."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from trinity_core.builtins.tasksets.numbers import Numbers
from trinity_core.protocols import Taskset
from trinity_core.types import Task

FILLER = (  # noqa: SIM905 - a list to read, not to type
    "the of and to in is that for it was on are as with they at this from have or by one had not but what all were when we "
    "there can said which do their time if will way about many then them would write like so these her long make thing see "
    "him two has look more day could go come did my sound no most number who over know water than call first people may down"
).split()
"""Words that are one token each behind a space."""


@dataclass(frozen=True)
class LongPrompts(Taskset):
    """*largest of three numbers* of the taskset ``numbers``, with ``words`` words before the question, others in each row."""

    words: int = 176
    """Filler words, one token each: 256 tokens a prompt with SmolLM2's template."""
    size: int = 4096
    """Rows."""
    seed: int = 0
    """Another seed, other rows."""

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> Task:
        task = Numbers(kind="largest", size=self.size, seed=self.seed)[row]
        rng = random.Random(f"{self.seed}/filler/{row}")
        filler = " ".join(rng.choices(FILLER, k=self.words))
        *before, question = task.messages
        asked = {**question, "content": f"Ignore these words: {filler}.\n{question['content']}"}
        return replace(task, messages=(*before, asked))
