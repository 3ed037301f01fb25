"""Small questions, generated: a real model learns them within minutes on two cores."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trinity_core.errors import ConfigError
from trinity_core.protocols import Taskset
from trinity_core.types import Message, Task

SYSTEM = "Reply with only the answer, nothing else."
WORDS = (  # noqa: SIM905 - a list to read, not to type
    "cat dog sun tree book rain star fish bird moon lamp door milk frog ship leaf gold wind sand king "
    "banana letter apple cheese coffee window summer pepper balloon mirror kitten tomato pencil garden butter cookie "
    "rabbit carrot"
).split()
_EXAMPLE_SEED = 99
_TEST_SHARE = 5
"""One content in this many belongs to the test split."""

Question = tuple[str, str]


def _largest(rng: random.Random) -> Question:
    numbers = rng.sample(range(10, 100), 3)
    return f"Which number is the largest: {numbers[0]}, {numbers[1]}, {numbers[2]}?", str(max(numbers))


def _sum(rng: random.Random) -> Question:
    a, b, c = (rng.randint(1, 9) for _ in range(3))
    return f"What is {a} + {b} + {c}?", str(a + b + c)


def _first_letter(rng: random.Random) -> Question:
    word = rng.choice(WORDS)
    return f'What is the first letter of the word "{word}"?', word[0]


def _sort(rng: random.Random) -> Question:
    numbers = rng.sample(range(1, 10), 3)
    answer = ", ".join(map(str, sorted(numbers)))
    return "Sort these numbers from smallest to largest: " + ", ".join(map(str, numbers)), answer


def _wrong(kind: str, answer: str, question: str, rng: random.Random) -> str:
    """An answer that somebody might give, and that is not right."""
    if kind == "sum":
        return str(int(answer) + rng.choice((-2, -1, 1, 2)))
    if kind == "first_letter":
        letters = sorted(set(question.split('"')[1]) - {answer})
        return rng.choice(letters)
    if kind == "largest":
        numbers = question.rstrip("?").rpartition(": ")[2].split(", ")
        return rng.choice([number for number in numbers if number != answer])
    digits = answer.split(", ")
    while ", ".join(digits) == answer:
        rng.shuffle(digits)
    return ", ".join(digits)


_KINDS: dict[str, Callable[[random.Random], Question]] = {
    "largest": _largest,
    "sum": _sum,
    "first_letter": _first_letter,
    "sort": _sort,
}


def split_of(question: str) -> str:
    """*train* or *test*: a hash of the question decides, so no question is in both."""
    return "test" if hashlib.blake2b(question.encode(), digest_size=4).digest()[0] % _TEST_SHARE == 0 else "train"


@dataclass(frozen=True)
class Numbers(Taskset):
    """Questions about small numbers and words, generated from (seed, split, row).

    Kinds: *largest* of three two-digit numbers, *sum* of three digits, *first_letter* of one of 38 words, *sort* three
    digits. The chat opens with a worked example: without one a small model explains instead of answering, and a strict
    reward has no signal. Questions of the test split never occur in the train split; within a split they may repeat.

    With ``demonstrations`` each task brings its right answer along to be learned, with ``preferences`` a pair of the right
    answer and a plausible wrong one (another of the numbers, a sum off by one or two, another letter of the word, another
    order). Such tasks are recorded, not played; an evaluation plays them.
    """

    kind: Literal["largest", "sum", "first_letter", "sort"] = "largest"
    """What is asked."""
    split: Literal["train", "test"] = "train"
    """A question belongs to one of them, by its hash."""
    size: int = 4096
    """Rows."""
    shots: int = 1
    """Worked examples before the question: always the same ones, none of them a test question."""
    seed: int = 0
    """Another seed, other rows: splits stay apart."""
    demonstrations: bool = False
    """Give the right answer as an expert's."""
    preferences: bool = False
    """Give the right answer as chosen and a wrong one as rejected."""

    def __post_init__(self) -> None:
        if self.shots < 0 or self.size < 0:
            raise ConfigError(f"numbers: size={self.size} and shots={self.shots} count something; neither is negative")

    def __len__(self) -> int:
        return self.size

    def gives(self) -> frozenset[str]:
        roles = {"expert"} if self.demonstrations else set()
        return frozenset(roles | ({"chosen", "rejected"} if self.preferences else set()))

    def __getitem__(self, row: int) -> Task:
        if not 0 <= row < self.size:
            raise IndexError(f"row {row} of {self.size}")
        examples = self._examples()
        question, answer = self._draw(random.Random(f"{self.seed}/{self.kind}/{self.split}/{row}"), examples)
        messages: list[Message] = [{"role": "system", "content": SYSTEM}]
        for shown, solution in examples:
            messages += [{"role": "user", "content": shown}, {"role": "assistant", "content": solution}]
        messages.append({"role": "user", "content": question})
        name = f"{self.kind}-{self.split}-{self.seed}-{row}"
        return Task(name, tuple(messages), answer, given=self._given(row, question, answer))

    def _given(self, row: int, question: str, answer: str) -> dict[str, list[Message]]:
        said = dict.fromkeys(sorted(self.gives()), answer)
        if self.preferences:  # drawn apart, so that the questions stay the same
            rng = random.Random(f"{self.seed}/{self.kind}/{self.split}/{row}/wrong")
            said["rejected"] = _wrong(self.kind, answer, question, rng)
        return {role: [{"role": "assistant", "content": text}] for role, text in said.items()}

    def _examples(self) -> list[Question]:
        rng = random.Random(_EXAMPLE_SEED)
        return [_KINDS[self.kind](rng) for _ in range(self.shots)]

    def _draw(self, rng: random.Random, examples: list[Question]) -> Question:
        while True:
            question, answer = _KINDS[self.kind](rng)
            shown = self.split == "test" and (question, answer) in examples
            if split_of(question) == self.split and not shown:
                return question, answer
