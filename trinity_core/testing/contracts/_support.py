"""What the contract of ledgers works with: a bare run, groups made by number, and equality that looks into arrays."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from trinity_core.protocols import Buffer, Ledger, RunContext
from trinity_core.types import Attempt, Call, Experience, Extra, Fault, Group, Invalid, Ok, Origin, Role, Sampling, Task

TTL_S = 60.0


class BareRun(RunContext):
    """As much of a run as a buffer may know. Picklable: other processes open the same ledger with it."""

    def __init__(self, folder: Path, id: str | None = None) -> None:
        self.id = id or f"kit-{uuid.uuid4().hex[:12]}"
        self.dir = folder
        self.mode = "both"
        self.seed = 0
        self.step = 0

    def log(self, name: str, value: float) -> None:
        """Nobody reads it."""

    def rng(self, slot: str) -> np.random.Generator:
        return np.random.default_rng(0)


def open_new(buffer: Buffer, tmp: Path) -> tuple[Ledger, BareRun]:
    """A ledger nobody used before, its first lineage begun."""
    run = BareRun(tmp)
    ledger = buffer.open(run)
    ledger.begin(None, ordered=True)
    return ledger, run


def small_group(run_id: str, draw: int, *, version: int | None = 0, reward: float = 0.5) -> Group:
    """One attempt of four tokens."""
    calls = [] if version is None else [Call(2, 4, 0, [(version, 2)], Sampling())]
    sequence = Experience(
        np.array([7, 8, draw, 9], np.int32),
        np.array([0, 0, 1, 1] if version is not None else [0, 0, 2, 2], np.uint8),
        np.array([np.nan, np.nan, -0.5, -0.25], np.float32),
        calls,
    )
    task = Task(f"task-{draw}", ({"role": "user", "content": "?"},))
    attempt = Attempt([sequence], score=Ok(reward), task=task)
    return Group(f"{run_id}/{draw:06d}", task, [attempt], "kit", draw, draw)


def rich_group(run_id: str) -> Group:
    """Something of everything that a group can hold."""
    data: dict[Any, Any] = {
        "big": 2**90,
        "pair": (1, "two"),
        "array": np.arange(6.0).reshape(2, 3),
        3: b"bytes",
        "nan": float("nan"),
    }
    task = Task(
        "rich",
        ({"role": "user", "content": "naïve ☃\0"}, {"role": "assistant", "tool_calls": [{"id": 1, "arguments": {"x": None}}]}),
        "42",
        data,
    )  # fmt: skip
    scores = (Ok(np.float64(0.25), {"format": 1}), Invalid("no gold"), Fault("timed out", retryable=False), None)
    attempts = []
    roles: tuple[Role, ...] = ("sample", "greedy", "chosen", "rejected")
    for i, role in enumerate(roles):
        origin = np.array([Origin.CONTEXT, Origin.HISTORY, Origin.SAMPLED, Origin.TARGET], np.uint8)
        first = Experience(
            np.arange(4, dtype=np.int32) + i,
            origin,
            np.array([np.nan, np.nan, -1.5, np.nan], np.float32),
            [Call(2, 3, 0, [(3, 2), (4, 3)], Sampling(0.7, 0.9, 5, 16, ("\n",)), "length", "state", 0.5, "judge")],
            np.array([0, 0, 1, 0], np.float32),
            {"top": Extra(np.ones((2, 5), np.float16), "action"), "empty": Extra(np.zeros((1, 0)), "call")},
        )
        branch = Experience(np.array([], np.int32), np.array([], np.uint8), np.array([], np.float32), index=1, parent=0)
        attempts.append(
            Attempt(
                [first, branch], role, "text", [{"role": "user", "content": ""}], {"n": [1, (2,)]}, scores[i], i, task
            )
        )
    return Group(f"{run_id}/rich", task, attempts, "kit", 5, 0, [(2, 3)])


def same(a: Any, b: Any) -> bool:
    """Equal in type and value, down to dtypes, shapes and NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b) or bool(a != a and b != b)


def fill(ledger: Ledger, run: BareRun, n: int, *, version: int = 0) -> list[str]:
    """Play ``n`` draws and put their groups; their ids."""
    ids = []
    for opening in ledger.enter("kit", n, 10**6, version=version, ttl_s=TTL_S):
        group = small_group(run.id, opening.draw, version=version)
        ledger.put(group, place=opening.place)
        ids.append(group.id)
    return ids
