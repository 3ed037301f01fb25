"""What the trainer carries from step to step: algorithm, evaluations, versions on their way, checkpoints."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.kl import adapt, k1
from trinity_core.codec import pack_state
from trinity_core.config.schedule import evaluate
from trinity_core.errors import CheckpointError
from trinity_core.protocols import Position
from trinity_core.run import checkpoint
from trinity_core.run.context import Run
from trinity_core.run.credit import Algorithm
from trinity_core.run.deliver import load, needs_digest, publish, to_folder
from trinity_core.run.evaluate import Evaluator
from trinity_core.run.source import Shelf
from trinity_core.run.teacher import BackendTeacher, EngineTeacher, Teacher
from trinity_core.types import Weights

WEIGHTS = "weights"
"""Folder of published versions, for explorers in other processes."""
TIMED = ("time/", "memory/", "tokens/sampled", "groups/filtered/", "logged/")
"""Prefixes of metrics that measure the machine, not the run: they enter no digest. (How far play
has got when a step is logged depends on timing.)"""


class Training:
    """The trainer's side of a run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.algorithm = Algorithm(run.config)
        self.evaluator = Evaluator(run)
        self.shelf = Shelf()
        self.batch_ids: list[str] = []
        """Groups of the step in hand: what a failure's bundle names."""
        self.deliveries = 0
        self._published = False
        kl = run.config.algorithm.kl
        self.kl_start: float | None = evaluate(kl.coef, 0) if kl.target is not None else None
        """What an adaptive KL coefficient starts from."""
        self.kl_coef = self.kl_start
        """Present value of an adaptive KL coefficient."""
        self.teacher = teacher_of(run)
        self._writing: tuple[int, asyncio.Future[Path]] | None = None
        """The step whose checkpoint is being written."""
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        run.closing("checkpoint", self._writer.shutdown)
        self.metrics_chain = ""
        """Hash over every step's metrics so far, without those that measure time."""

    def chain(self, metrics: Mapping[str, float]) -> None:
        kept = {name: repr(value) for name, value in sorted(metrics.items()) if not name.startswith(TIMED)}
        self.metrics_chain = hashlib.sha256((self.metrics_chain + json.dumps(kept)).encode()).hexdigest()

    def adapt(self, batch: TrainBatch) -> None:
        """An adaptive KL coefficient follows the KL of the step that was trained, under the policy that began it."""
        kl = self.run.config.algorithm.kl
        if self.kl_coef is None or kl.target is None or not batch.num_actions:
            return
        own_N = batch.keep_N & (batch.population_B[batch.row_N] == 1)
        if own_N.any():
            measured = float(np.mean(k1(batch.measured["old_logp"], batch.measured["ref_logp"])[own_N]))
            attempts = len(np.unique(batch.attempt_B[batch.row_N[own_N]]))
            self.kl_coef = adapt(self.kl_coef, measured, kl.target, kl.horizon, attempts)

    # versions
    async def publish(self, step: int) -> Weights:
        """The backend's weights as version ``step``: a copy wherever sampling may overlap training."""
        backend = self.run.backend
        assert backend is not None
        gate, sync = self.run.gate, self.run.config.sync
        # counted by what an uninterrupted run delivers: a version published for an evaluation alone, or again by a
        # resume, is none of its own. A process's first is always verified: its engine is new.
        delivery = step // sync.interval if gate.ordered else step
        verify = needs_digest(sync, delivery) or not self._published
        self.deliveries, self._published = delivery + 1, True
        copy = self.run.gate.overlaps or self.run.mode == "train"
        weights: Weights = await self.run.compute(publish, backend, step, copy=copy, verify=verify)
        return weights

    def announce(self, weights: Weights) -> None:
        """Let explorers have a version: from the shelf in this process (where nobody reads the ledger for it), from a folder in
        another."""
        run = self.run
        if run.mode != "train":
            self.shelf.put(weights)
            return
        name = f"{WEIGHTS}/{run.ledger.lineage}-{weights.version}"
        to_folder(weights, run.dir / name)
        run.ledger.announce(weights.version, name)
        sync = run.config.sync
        behind = weights.version - (sync.max_staleness + sync.interval + sync.offset + 2)
        remove_old(run.dir / WEIGHTS, run.ledger.lineage, behind)

    async def evaluate(self, step: int, weights: Weights) -> None:
        """Pin the engine to ``weights`` and evaluate; play's clock stands still meanwhile, and no draw starts: the engine holds a
        version that was not announced yet."""
        run = self.run
        run.reserved = True
        await load(run, weights)
        running = run.clock.running
        run.clock.pause()
        async with run.engine_lock:
            await self.evaluator.evaluate(step)
        if running and run.step < run.config.steps:
            run.clock.start()

    # checkpoints
    def state(self) -> dict[str, Any]:
        position: Position = self.run.ledger.position(self.run.step)
        return {
            "step": self.run.step,
            "id": self.run.id,
            "position": {"step": position.step, "draw": position.draw, "given_up": position.given_up},
            "deliveries": self.deliveries,
            "metrics_chain": self.metrics_chain,
            "kl_coef": self.kl_coef,
            "kl_start": self.kl_start,
            "train_seconds": self.run.clock.seconds,
            "tokens_sampled": self.run.tokens_sampled,
            "has_trained": self.run.has_trained,
            "tokenizer": self.run.tokenizer.digest(),
            "components": self.run.states(),
        }

    async def save(self, step: int) -> None:
        """The checkpoint of ``step``: what it holds is fixed here, and it is written while the run goes on where that is asked for
        and the backend can; else on the training thread. One at a time: this waits for the one before."""
        run = self.run
        assert run.backend is not None
        await self.written()
        state = pack_state(self.state())
        weights = await run.compute(run.backend.snapshot) if run.config.checkpoint.background else None
        root, keep = run.dir / "checkpoints", run.config.checkpoint.keep
        if weights is None:
            path = await run.compute(checkpoint.write, root, step, run.backend.save, state, keep=keep)
            run.tell("checkpointed", step, str(path))
            return
        writing = partial(checkpoint.write, root, step, weights, state, keep=keep)
        self._writing = (step, asyncio.get_running_loop().run_in_executor(self._writer, writing))

    async def written(self, *, wait: bool = True) -> None:
        """Take note of a checkpoint that was written beside the run, and raise what went wrong with it. ``wait=False``: only if
        it has ended."""
        if self._writing is None:
            return
        step, writing = self._writing
        if wait or writing.done():
            # shielded: a run that is interrupted still waits for its last checkpoint
            try:
                path = await asyncio.shield(writing)
            except Exception:
                self._writing = None  # told once; an interrupted wait is none, and waits again
                raise
            self._writing = None
            self.run.tell("checkpointed", step, str(path))

    async def settle(self) -> str:
        """At the end of a run that failed: wait for what is being written; what went wrong with it, or ""."""
        try:
            await self.written()
        except CheckpointError as error:
            return str(error)
        return ""

    def restore(self, state: Mapping[str, Any]) -> Position:
        """Take up a checkpoint's state; returns where it stands in the ledger.

        Raises :class:`CheckpointError` where tokenizer or chat template are not those it was trained with.
        """
        then, now = str(state["tokenizer"]), self.run.tokenizer.digest()
        if then != now:
            model = self.run.config.model
            raise CheckpointError(
                f"step {state['step']}: the checkpoint was trained with tokenizer and chat template {then[:12]}, this run has "
                f"{now[:12]} (model.path={model.path}, model.chat_template={model.chat_template}): the same words would be "
                "other tokens. Put the old files back, or start a new run"
            )
        self.run.step = int(state["step"])
        self.deliveries = int(state["deliveries"])
        self.metrics_chain = str(state["metrics_chain"])
        started = state.get("kl_start", self.kl_start)
        if self.kl_coef is not None and state.get("kl_coef") is not None and started == self.kl_start:
            self.kl_coef = float(state["kl_coef"])  # unless another start was typed
        self.run.clock.add(float(state["train_seconds"]))
        self.run.tokens_sampled = int(state["tokens_sampled"])
        self.run.has_trained = bool(state["has_trained"])
        self.run.load_states(state["components"])
        self.evaluator = Evaluator(self.run)
        return Position(**state["position"])


def teacher_of(run: Run) -> Teacher | None:
    """The run's teacher: an auxiliary engine of that role, else the backend's, else none."""
    if (engine := run.models.get("teacher")) is not None:
        return EngineTeacher(engine, run.tokenizer, asyncio.get_running_loop())
    if run.backend is not None and run.config.part("backend").has_teacher(run.config):
        return BackendTeacher(run.backend)
    return None


def remove_old(folder: Path, lineage: int, behind: int) -> None:
    """Remove versions of lineages before ``lineage``, its own before version ``behind``, and what a killed writer left."""
    for old in folder.iterdir():
        named = re.fullmatch(r"(\d+)-(\d+)", old.name)
        if named is None and not re.fullmatch(r"\.\d+-\d+\.(tmp|gone)", old.name):
            continue  # none of ours
        if named is not None:
            if int(named[1]) >= lineage and int(named[2]) >= behind:
                continue
            # renamed first: who loads it finds it whole or not at all
            old = old.rename(old.with_name(f".{old.name}.gone"))
        shutil.rmtree(old)
