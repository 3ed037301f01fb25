"""One run from start to end: make the folder, open the parts, run the loops, close everything, write the summary."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from trinity_core.config.plain import manifest, to_plain
from trinity_core.config.schema import RunConfig
from trinity_core.errors import Fenced, LedgerError, RunError, TrinityError
from trinity_core.rollout.outcome import place_of
from trinity_core.run import checkpoint
from trinity_core.run.alongside import alongside, beats
from trinity_core.run.context import Run
from trinity_core.run.ending import bundle, summarize, versions
from trinity_core.run.folder import RunFolder, read_json, write_atomic, write_json
from trinity_core.run.joining import explore_for, join_config
from trinity_core.run.loop import both, explore, train
from trinity_core.run.parts import EXPLORED, open_parts
from trinity_core.run.resume import compare, differences, identity
from trinity_core.run.state import Training

PROGRESS_S = 0.5
RATE_S = 10.0
"""Tokens per second are an average over this long: tokens arrive a wave at a time."""


def start(config: RunConfig, words: Sequence[str], *, out: Path | None = None) -> dict[str, Any]:
    """Run ``config`` and return the summary; it is also in ``<folder>/summary.json``. Raises what stopped the run."""
    if config.join:
        return asyncio.run(join_config(config, words, explore_for))
    if config.resume:
        folder = RunFolder.existing(Path(config.resume))
    else:
        folder = RunFolder.create(out or (Path(config.out) if config.out else None))
    try:
        if config.resume:
            compare(config, folder.path, words)
        return asyncio.run(run_in(config, words, folder))
    finally:
        folder.close()


async def run_in(config: RunConfig, words: Sequence[str], folder: RunFolder) -> dict[str, Any]:
    """The run in its folder, with a summary whatever happens. A new run that fails before it began leaves no folder."""
    began = time.time()

    def kept(training: Training | None) -> bool:
        return training is not None or bool(config.resume)

    id, saved_words = identity(folder.path, words, fresh=secrets.token_hex(6))
    run = Run(config, id=id, dir=folder.path)
    remember(run, folder.path, saved_words)
    status, training = "failed", None
    error: TrinityError | None = None
    stop = Stop()
    try:
        with stopping(asyncio.current_task(), stop):
            training = await open_parts(run)
            await run_mode(run, training)
        status = "finished"
    except asyncio.CancelledError:
        status = "interrupted"
        error = stop.error(f"interrupted at step {run.step + 1}" if kept(training) else "interrupted at start")
    except TrinityError as caught:
        error = caught
    except Exception as caught:  # noqa: BLE001 - user code may raise anything: it becomes one message and a bundle
        look = f"What was in hand is in {folder.path}/failure.json" if kept(training) else "TRINITY_DEBUG=1 shows more"
        error = RunError(f"step {run.step + 1}: {type(caught).__name__}: {caught}{place_of(caught)}. {look}")
        error.__cause__ = caught
    said = await training.settle() if error is not None and training is not None else ""
    if error is not None and status == "interrupted" and kept(training):
        error.args = (f"{error}. {goes_on(run, training)}",)
    if error is not None and said:
        error.args = (f"{error}. Besides: {said}",)
    summary = summarize(run, training, status, began, kept=kept(training))
    if error is not None:
        summary["error"] = str(error)
        bundle(run, training, error)
    problems = await finish(run, summary)
    if error is not None:
        if not kept(training):
            folder.forget()
        raise error
    if problems:
        write_json(folder.path / "summary.json", summary | {"status": "failed", "error": "; ".join(problems)})
        raise RunError("; ".join(problems))
    (folder.path / "failure.json").unlink(missing_ok=True)  # of an earlier try
    return summary


def goes_on(run: Run, training: Training | None) -> str:
    """How an interrupted run goes on, and from where."""
    where = ""
    with contextlib.suppress(OSError, LedgerError):  # who interrupts a run is not to be told of what cannot be read
        path = checkpoint.newest(run.dir / "checkpoints")
        if path is not None:
            where = f" from step {checkpoint.step_of(path)}, its last checkpoint,"
        elif training is not None and run.mode in ("both", "train") and run.ledger.heard(EXPLORED) is None:
            where = " from its start (there is no checkpoint yet)"
    return f"Go on{where} with: trinity run resume={run.dir}"


def remember(run: Run, folder: Path, words: list[str]) -> None:
    """Write what was typed, then the config it made, then what computes it. A resume reads them in this order's sense: words
    may be newer than the config, never older."""
    config = run.config
    write_json(folder / "words.json", {"id": run.id, "words": words})
    write_atomic(folder / "config.yaml", yaml_of(to_plain(config)))
    new = manifest(config) | {"versions": versions(), "threads": {"threads": str(config.threads or os.cpu_count())}}
    if (folder / "manifest.json").is_file():
        old = read_json(folder / "manifest.json", "the manifest")
        run.manifest_changes = [
            f"{path} was {then!r} and is now {now!r}: from here on numbers may differ from those of one uninterrupted run"
            for path, then, now in differences(old, new)
        ]
    write_json(folder / "manifest.json", new)


async def run_mode(run: Run, training: Training) -> None:
    """First delivery and first evaluation, then the loops that the mode asks for."""
    async with ticking(run):
        weights = await training.publish(run.step)
        due = training.evaluator.due(run.step, last=run.config.steps)
        if run.mode == "bench":
            await training.evaluate(run.step, weights)
            return
        if due and run.engine is not None:
            await training.evaluate(run.step, weights)
        if run.mode in ("both", "train") and run.step >= run.config.steps:
            run.tell(
                "warned", f"the run already has its {run.config.steps} steps; to go on: steps=N with N > {run.step}"
            )
            return
        training.announce(weights)
        run.reserved = False
        if run.mode == "both":
            await both(run, training)
        elif run.mode == "train":
            await train(run, training)
        else:
            await explore(run, training.shelf)


async def finish(run: Run, summary: dict[str, Any]) -> list[str]:
    """Write the summary, tell the trackers, close everything."""
    problems = []
    try:
        write_json(run.dir / "summary.json", summary)
        if hasattr(run, "ledger"):
            run.ledger.say("status", summary["status"])
    except (OSError, TrinityError) as error:
        problems.append(f"the end could not be recorded: {error}")
    return problems + await run.end(summary)


@contextlib.asynccontextmanager
async def ticking(run: Run) -> AsyncIterator[None]:
    """Heartbeats for the trackers and for the places this process holds. One that fails ends the run."""

    async def progress() -> None:
        seen: deque[tuple[float, int]] = deque(maxlen=round(RATE_S / PROGRESS_S))
        while True:
            seen.append((time.perf_counter(), run.tokens_of_all))
            (then, before), (now, after) = seen[0], seen[-1]
            run.tell("progress", run.progress((after - before) / (now - then) if now > then else 0.0))
            await asyncio.sleep(PROGRESS_S)

    def beat() -> None:
        try:
            run.ledger.renew_places(run.owner, ttl_s)
            run.ledger.say(f"alive:{run.owner}", str(time.time()))
        except Fenced:
            if run.config.join is None:
                raise
            # an explorer meets the new lineage in its loop, and joins it

    ttl_s = run.config.explorer.place_ttl_s
    async with alongside(progress(), beats(beat, ttl_s / 4, ttl_s)):
        yield


class Stop:
    """Which signal stopped the run, if one did."""

    signal: int = signal.SIGINT

    def error(self, message: str) -> RunError:
        """The error of an interrupted run; a shell sees 128 + the signal's number."""
        error = RunError(message)
        error.exit_code = 128 + int(self.signal)
        return error


@contextlib.contextmanager
def stopping(task: asyncio.Task[Any] | None, stop: Stop) -> Any:
    """SIGINT and SIGTERM cancel the run, which then closes as after any failure."""

    def cancel(number: int) -> None:
        stop.signal = number
        # a second one ends the process, whatever the run is waiting for
        signal.signal(number, signal.SIG_DFL)
        if task is not None:
            task.cancel()

    loop = asyncio.get_running_loop()
    caught = []
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(
            NotImplementedError, RuntimeError, ValueError
        ):  # not the main thread: no handlers there
            loop.add_signal_handler(number, cancel, number)
            caught.append(number)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


def yaml_of(plain: dict[str, Any]) -> str:
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(plain))
