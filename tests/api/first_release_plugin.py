"""A plugin with one component of each kind, written against the first release, and never edited since.

Each has the least a component of its kind may have. If a change makes this file fail, the change breaks plugins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trinity_core import hookimpl
from trinity_core.algo import AdvantageBatch, Credit, LossBatch, LossOutput, TrainBatch
from trinity_core.protocols import (
    Advantage,
    Backend,
    Buffer,
    Correction,
    Engine,
    Environment,
    Ledger,
    LiveBackend,
    LiveEngine,
    Loss,
    Operator,
    Reward,
    RunContext,
    Runtime,
    SampleStrategy,
    Selector,
    Taskset,
    Tracker,
    Workflow,
)
from trinity_core.types import (
    Attempt,
    Completion,
    Entry,
    Group,
    Invalid,
    Ok,
    Receipt,
    Request,
    Result,
    Score,
    Step,
    Task,
    UpdateResult,
    Weights,
)

HERE = "first_release_plugin"


@hookimpl
def trinity_tasksets() -> Mapping[str, str]:
    return {"first_taskset": f"{HERE}:FirstTaskset"}


@hookimpl
def trinity_rewards() -> Mapping[str, str]:
    return {"first_reward": f"{HERE}:FirstReward"}


@dataclass(frozen=True)
class FirstTaskset(Taskset):
    """Asks for a digit."""

    size: int = 4
    """Rows."""

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> Task:
        if row >= self.size:
            raise IndexError(row)
        return Task(f"first-{row}", ({"role": "user", "content": f"say {row}"},), str(row))


@dataclass(frozen=True)
class FirstSelector(Selector):
    """Rows of the first taskset in turn."""

    def pick(
        self, draws: Sequence[int], sizes: Mapping[str, int], weights: Mapping[str, float]
    ) -> list[tuple[str, int]]:
        slot = next(iter(sizes))
        return [(slot, draw % sizes[slot]) for draw in draws]


@dataclass(frozen=True)
class FirstWorkflow(Workflow):
    """Asks once."""

    async def run(self, task: Task, chat: Any) -> Result:
        reply = await chat(list(task.messages))
        return Result(text=reply.text)


@dataclass(frozen=True)
class FirstEnvironment(Environment):
    """Over after one word."""

    async def reset(self, task: Task) -> Step:
        return Step(messages=[dict(message) for message in task.messages])

    async def step(self, action: str) -> Step:
        return Step(messages=[{"role": "user", "content": "thanks"}], reward=float(bool(action)), done=True)

    async def close(self) -> None:
        return None


@dataclass(frozen=True)
class FirstReward(Reward):
    """1 where the text holds the gold answer."""

    def __call__(self, attempt: Attempt) -> Score:
        if attempt.task is None or attempt.task.answer is None:
            return Invalid("no gold answer")
        return Ok(float(attempt.task.answer in attempt.text), {"length": float(len(attempt.text))})


@dataclass(frozen=True)
class FirstGroupReward(Reward):
    """Share of the group's attempts that are longer than none."""

    def group(self, attempts: Sequence[Attempt]) -> list[Score]:
        return [Ok(float(bool(attempt.text))) for attempt in attempts]


@dataclass(frozen=True)
class FirstOperator(Operator):
    """Keeps every group."""

    def __call__(self, group: Group) -> list[Group]:
        return [group]


@dataclass(frozen=True)
class FirstBuffer(Buffer):
    """Opens a ledger that stores nothing."""

    def open(self, run: RunContext) -> FirstLedger:
        return FirstLedger()


class FirstLedger(Ledger):
    lineage = 0

    def index(self, *, max_uses: int = 1) -> list[Entry]:
        return []

    def events(self, after: int = 0) -> Iterator[Any]:
        return iter(())


@dataclass(frozen=True)
class FirstStrategy(SampleStrategy):
    """The first of the index."""

    def __call__(self, index: Sequence[Entry], n: int) -> list[str]:
        return [entry.id for entry in index[:n]]


@dataclass(frozen=True)
class FirstAdvantage(Advantage):
    """Reward minus the mean of its group."""

    def __call__(self, batch: AdvantageBatch) -> Credit:
        advantage_A = np.zeros_like(batch.reward_A)
        for group in np.unique(batch.group_A):
            here = (batch.group_A == group) & batch.baseline_A
            advantage_A[here] = batch.reward_A[here] - batch.reward_A[here].mean()
        return Credit(advantage_A, metrics={"first/attempts": float(len(advantage_A))})


@dataclass(frozen=True)
class FirstLoss(Loss):
    """``-A logp``."""

    scale: float = 1.0
    """Factor of the loss."""

    def __call__(self, batch: LossBatch) -> LossOutput:
        return LossOutput.per_token(-self.scale * batch.advantage_N * batch.logp_N)


@dataclass(frozen=True)
class FirstCorrection(Correction):
    """Weighs every token alike."""

    def __call__(self, batch: LossBatch) -> Any:
        weight_N = batch.detach(batch.logp_N) * 0 + 1
        return weight_N, weight_N > 0


@dataclass(frozen=True)
class FirstBackend(Backend):
    """Weights that never move."""

    def open(self, run: RunContext) -> FirstLiveBackend:
        return FirstLiveBackend()


class FirstLiveBackend(LiveBackend):
    def measure(self, batch: TrainBatch, model: str, outputs: frozenset[str]) -> dict[str, Any]:
        return {name: np.zeros(batch.num_actions) for name in outputs}

    def update(self, batch: TrainBatch, model: str, objective: Any, *, lr_scale: float) -> UpdateResult:
        return UpdateResult(loss=0.0, grad_norm=0.0, lr=0.0, stats={})

    def publish(self, version: int, *, copy: bool) -> Weights:
        return Weights(version, "tensors", {})

    def save(self, folder: Path) -> None:
        (folder / "state").touch()

    def load(self, folder: Path) -> None:
        (folder / "state").stat()

    def export(self, folder: Path) -> None:
        (folder / "weights").touch()

    def digest(self) -> str:
        return "0" * 64


@dataclass(frozen=True)
class FirstEngine(Engine):
    """Always says 0."""

    def open(self, run: RunContext) -> FirstLiveEngine:
        return FirstLiveEngine()


class FirstLiveEngine(LiveEngine):
    version = -1

    async def generate(self, request: Request) -> Completion:
        return Completion(np.zeros(1, np.int32), np.zeros(1, np.float32), "stop", [(self.version, 0)])

    async def load(self, weights: Weights, *, in_flight: Literal["finish", "abort", "continue"] = "finish") -> Receipt:
        self.version = weights.version
        return Receipt(weights.version, "first", "digest", 0)


@dataclass(frozen=True)
class FirstRuntime(Runtime):
    """This process."""


@dataclass(frozen=True)
class FirstTracker(Tracker):
    """Writes one line for each step."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        print(f"first: step {step}, {len(metrics)} metrics")


EVERY = {
    "taskset": "FirstTaskset",
    "selector": "FirstSelector",
    "workflow": "FirstWorkflow",
    "environment": "FirstEnvironment",
    "reward": "FirstReward",
    "operator": "FirstOperator",
    "buffer": "FirstBuffer",
    "sample_strategy": "FirstStrategy",
    "advantage": "FirstAdvantage",
    "loss": "FirstLoss",
    "correction": "FirstCorrection",
    "backend": "FirstBackend",
    "engine": "FirstEngine",
    "runtime": "FirstRuntime",
    "tracker": "FirstTracker",
}
