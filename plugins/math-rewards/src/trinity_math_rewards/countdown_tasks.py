"""Countdown: make a target out of a few numbers. Generated from a seed, or read from a file."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trinity_core.errors import ConfigError, DataError
from trinity_core.protocols import RunContext, Taskset
from trinity_core.types import Task
from trinity_math_rewards.rows import Rows, read_jsonl, task_id

PROMPT = (
    "Using the numbers {nums}, write an expression that equals {target}. Use each number exactly once, and only + - * / and "
    "parentheses. Reason step by step, then write the expression inside <answer> </answer>, for example "
    "<answer>(1 + 2) * 3</answer>."
)


@dataclass(frozen=True)
class Countdown(Taskset):
    """Solvable countdown problems.

    Without ``path`` they are generated: row i of a split depends on (seed, split, i) and on nothing else, every target is a
    positive integer reached through integers, and no problem of ``train`` is one of ``test``: a hash of the problem
    decides which split it may be in. With ``path``: JSON Lines ``{"nums": [..], "target": n}``.
    """

    path: str | None = None
    """A ``.jsonl`` file, or a folder with ``train.jsonl`` and ``test.jsonl``; null: generate."""
    split: Literal["train", "test"] = "train"
    """Nine in ten of all problems may be in train, the others in test."""
    size: int = 1000
    """Problems to generate."""
    seed: int = 0
    """Of the generator; not the run's seed, so that all runs see the same problems."""
    num_min: int = 3
    """Fewest numbers of a problem."""
    num_max: int = 4
    """Most numbers of a problem."""
    largest: int = 50
    """Largest given number."""
    largest_target: int = 100
    """Largest number to make; the smallest is 1."""
    limit: int | None = None
    """First rows only; null: all."""
    prompt: str = PROMPT
    """The user's message; ``{nums}`` and ``{target}`` are filled in."""

    def __post_init__(self) -> None:
        if not 2 <= self.num_min <= self.num_max <= 6:
            raise ConfigError(
                f"countdown.num_min: needs 2 ≤ num_min ≤ num_max ≤ 6, got {self.num_min} and {self.num_max}"
            )
        if self.largest < 4 or self.largest_target < 10 or self.size < 1:
            raise ConfigError("countdown: needs largest ≥ 4, largest_target ≥ 10 and size ≥ 1")
        if "{nums}" not in self.prompt or "{target}" not in self.prompt:
            raise ConfigError("countdown.prompt: needs both {nums} and {target}")

    def open(self, run: RunContext | None = None) -> Rows:
        if self.path is None:
            rows = [
                self._generate(row) for row in range(self.size if self.limit is None else min(self.size, self.limit))
            ]
        else:
            rows = [self._problem(row, where) for row, where in read_jsonl(Path(self.path), self.split, self.limit)]
        return Rows([self._task(row, nums, target) for row, (nums, target) in enumerate(rows)])

    def _problem(self, row: dict[str, Any], where: str) -> tuple[list[int], int]:
        nums, target = row.get("nums"), row.get("target")
        if not isinstance(nums, list) or not nums or not all(type(n) is int for n in nums) or type(target) is not int:
            raise DataError(f'{where}: needs {{"nums": [integers], "target": integer}}, got {str(row)[:120]}')
        return nums, target

    def _task(self, row: int, nums: list[int], target: int) -> Task:
        # replace, not format: a prompt may hold other braces, as LaTeX does
        text = self.prompt.replace("{nums}", ", ".join(map(str, nums))).replace("{target}", str(target))
        data = {"nums": nums, "target": target}
        return Task(task_id("countdown", self.split, row), ({"role": "user", "content": text},), str(target), data)

    def _generate(self, row: int) -> tuple[list[int], int]:
        noise = random.Random(f"countdown/{self.seed}/{self.split}/{row}")
        while True:
            nums = [noise.randint(1, self.largest) for _ in range(noise.randint(self.num_min, self.num_max))]
            target = _combine(nums, noise)
            if (
                target is not None
                and target <= self.largest_target
                and target not in nums
                and side(nums, target) == self.split
            ):
                return nums, target


def side(nums: list[int], target: int) -> str:
    """Which split a problem may be in: one in ten is for testing."""
    digest = hashlib.sha256(f"{sorted(nums)} {target}".encode()).digest()
    return "test" if digest[0] % 10 == 0 else "train"


def _combine(nums: list[int], noise: random.Random) -> int | None:
    """A value that ``nums`` make through positive integers, or ``None`` where the dice lead nowhere."""
    pool = list(nums)
    while len(pool) > 1:
        noise.shuffle(pool)
        left, right = pool.pop(), pool.pop()
        results = [left + right, left * right]
        if left > right:
            results.append(left - right)
        if left % right == 0:
            results.append(left // right)
        pool.append(noise.choice(results))
        if pool[-1] > 10_000:
            return None
    return pool[0]
