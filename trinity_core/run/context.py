"""What the parts of a run share, and the order in which they open and close."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trinity_core.config.schema import RunConfig
from trinity_core.errors import RunError
from trinity_core.openmp import release_workers
from trinity_core.protocols import Ledger, LiveBackend, LiveEngine, RunContext, Selector, Taskset, Tokenizer
from trinity_core.rollout.operate import Operators
from trinity_core.rollout.renderer import Renderer
from trinity_core.run.gate import Gate
from trinity_core.run.source import Bell
from trinity_core.types import Group, Receipt, Role


class Clock:
    """Seconds of work: counts while it runs, so that pinned evaluations can be left out."""

    def __init__(self) -> None:
        self._total = 0.0
        self._since: float | None = None

    def start(self) -> None:
        if self._since is None:
            self._since = time.perf_counter()

    def pause(self) -> None:
        if self._since is not None:
            self._total += time.perf_counter() - self._since
            self._since = None

    def add(self, seconds: float) -> None:
        """Count work done before a resume."""
        self._total += seconds

    @property
    def running(self) -> bool:
        return self._since is not None

    @property
    def seconds(self) -> float:
        return self._total + (time.perf_counter() - self._since if self._since is not None else 0.0)


class Run(RunContext):
    """One run: its identity, its live parts, its place in time. Components see it as :class:`RunContext`."""

    ledger: Ledger
    backend: LiveBackend | None = None
    engine: LiveEngine | None = None
    selector: Selector
    scheduler: Any = None

    def __init__(self, config: RunConfig, *, id: str, dir: Path) -> None:
        self.config = config
        self.id = id
        self.dir = dir
        self.mode = config.mode
        self.seed = config.seed
        self.step = 0
        self.owner = id
        self.models: dict[str, Any] = {}
        self.tasksets: dict[str, Taskset] = {}
        self.eval_tasksets: dict[str, Taskset] = {}
        self.operators: dict[str, Any] = {}
        self.operating: Operators | None = None
        self.live: dict[str, Any] = {}
        self.trackers: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}
        self.weights: dict[str, float] = {}
        self.void_reasons: Counter[str] = Counter()
        self.filtered: Counter[str] = Counter()
        self.receipt: Receipt | None = None
        alone = config.mode == "explore" and config.join is None
        ahead = config.trainer.max_uses > 1 or bool(config.slots("operators"))
        self.gate = Gate(config.sync, config.groups_per_step, config.steps, alone, ahead)
        self.bell = Bell()
        self.sampling = Bell()
        """Rings when the engine has got something to do, or a group came without."""
        self.engine_lock = asyncio.Lock()
        self.reserved = False
        """Whether the engine is the evaluation's: no draw starts."""
        self.clock = Clock()
        self.manifest_changes: list[str] = []
        """What a resumed run computes with that differs from before."""
        self.phase = "starting"
        self.phase_of_trainer = ""
        self.tokens_sampled = 0
        """By play; evaluations count their own."""
        self.stored = 0
        """Groups that this process put."""
        self.last_reward: float | None = None
        """Mean reward of the last step."""
        self.has_trained = False
        self.skipped_steps = 0
        """Steps in a row without a finite update."""
        self.has_surplus = False
        self.alarm_raised = False
        """A tracker asked for a checkpoint after the step in hand."""
        self.stop_reason: str | None = None
        self._logged: dict[str, list[float]] = {}
        self._training_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")
        self._closers: list[tuple[str, Callable[[], Any]]] = []

    # what components see
    def log(self, name: str, value: float) -> None:
        self._logged.setdefault(name, []).append(float(value))

    def rng(self, slot: str) -> np.random.Generator:
        digest = hashlib.blake2b(f"{self.seed}/{slot}".encode(), digest_size=16).digest()
        return np.random.default_rng(int.from_bytes(digest, "little"))

    def alarm(self, action: Literal["warn", "checkpoint", "stop"], message: str) -> None:
        self.tell("warned", message)
        if action != "warn":
            self.alarm_raised = True
        if action == "stop":
            self.stop_reason = self.stop_reason or message

    def heed_alarm(self) -> None:
        """After the checkpoint that an alarm asked for: stop, if it asked for that."""
        self.alarm_raised = False
        if self.stop_reason is not None:
            raise RunError(
                f"step {self.step}: {self.stop_reason}. The step is saved; go on with: trinity run resume={self.dir}"
            )

    def take_logged(self) -> dict[str, float]:
        """Means of what components logged since the last step."""
        taken = {name: float(np.mean(values)) for name, values in self._logged.items()}
        self._logged.clear()
        return taken

    def take_filtered(self) -> dict[str, float]:
        """Groups that each operator dropped since the last step."""
        taken = {slot: float(count) for slot, count in sorted(self.filtered.items())}
        self.filtered.clear()
        return taken

    @property
    def extra_roles(self) -> tuple[Role, ...]:
        """Attempts of each draw beside the sampled ones: a greedy one where the algorithm's baseline needs it."""
        parts = [self.config.part(path) for path in ("advantage", "loss")]
        return ("greedy",) if any(part is not None and "greedy" in part.needs() for part in parts) else ()

    # what the loops call
    async def compute(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run heavy work on the run's one training thread: the loop stays alive, updates never interleave."""

        def alone() -> Any:
            try:
                return function(*args, **kwargs)
            finally:
                release_workers()

        return await asyncio.get_running_loop().run_in_executor(self._training_thread, alone)

    async def operate(self, group: Group) -> tuple[list[Group], str]:
        """The group through every operator in order: what is left, and which operator dropped the rest."""
        return await self.operating.apply(group) if self.operating is not None else ([group], "")

    # life
    def open(self, path: str, component: Any) -> Any:
        """Open one component; it is closed in reverse order, whatever happens."""
        live = component.open(self)
        release_workers()
        self.live[path] = live
        close = getattr(live, "close", None)
        if close is not None:
            self._closers.append((path, close))
        return live

    def closing(self, path: str, close: Callable[[], Any]) -> None:
        """Call ``close`` with the others, in its turn."""
        self._closers.append((path, close))

    def count_tokens(self, tokens: int) -> None:
        self.tokens_sampled += tokens

    def progress(self, rate: float) -> dict[str, Any]:
        """What trackers show from the first second."""
        bench, trains = self.mode == "bench", self.mode in ("both", "train") or self.config.join is not None
        counters = None
        if self.scheduler is not None:
            counters = self.scheduler.apart if bench else self.scheduler.counters
        return {
            # what the trainer does goes first; while it waits for groups, the explorer is what there is to see
            "phase": self.phase_of_trainer or self.phase,
            "step": self.step,
            "steps": (self.gate.last_step or self.config.steps) if trains else 0,
            "groups": counters.groups if counters else 0,
            "attempts": counters.attempts if counters else 0,
            "tokens": counters.tokens if bench and counters else self.tokens_sampled,
            "tokens_per_s": rate,
            "train_seconds": self.clock.seconds,
        }

    @property
    def tokens_of_all(self) -> int:
        """Tokens sampled, also by evaluations: what the speed is measured by."""
        return self.tokens_sampled + (self.scheduler.apart.tokens if self.scheduler is not None else 0)

    def use_tokenizer(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.renderer = Renderer(tokenizer)

    def states(self) -> dict[str, Any]:
        """State of every live part that has some, by its node. Backend and ledger keep their own."""
        return {
            path: live.state_dict()
            for path, live in sorted(self.live.items())
            if path not in ("backend", "buffer", "engine") and hasattr(live, "state_dict")
        }

    def load_states(self, states: Mapping[str, Any]) -> None:
        for path, state in states.items():
            live = self.live.get(path)
            if live is not None and hasattr(live, "load_state_dict"):
                live.load_state_dict(state)

    def tell(self, moment: str, *args: Any) -> None:
        """Tell every tracker; one that raises stops the run."""
        for tracker in self.trackers.values():
            getattr(tracker, moment)(*args)

    async def end(self, summary: Mapping[str, Any]) -> list[str]:
        """Tell every tracker how it ended, then close everything. Returns what went wrong."""
        problems = []
        for slot, tracker in self.trackers.items():
            try:
                tracker.finished(summary)
            except Exception as error:  # noqa: BLE001 - the others must still hear of the end; all are reported
                problems.append(f"trackers.{slot}: {type(error).__name__}: {error}")
        return problems + await self.close()

    async def close(self) -> list[str]:
        """Close everything, last opened first. Returns what went wrong; one failure never stops the others."""
        problems = []
        while self._closers:
            path, close = self._closers.pop()
            try:
                result = close()
                if hasattr(result, "__await__"):
                    await result
            except Exception as error:  # noqa: BLE001 - every other part must still be closed; all are reported
                problems.append(f"{path}: closing failed: {type(error).__name__}: {error}")
        self._training_thread.shutdown(wait=True)
        return problems
