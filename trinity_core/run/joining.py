"""An explorer in a process of its own: it reads the trainer's folder, plays for it, and writes only its own logs."""

from __future__ import annotations

import asyncio
import copy
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from trinity_core.config.plain import manifest, to_plain
from trinity_core.config.schema import RunConfig
from trinity_core.errors import ConfigError, Fenced, RunError
from trinity_core.run.context import Run
from trinity_core.run.folder import read_json, write_json
from trinity_core.run.loop import explore
from trinity_core.run.source import Folders

SHARED_NODES = (
    "model", "sampling", "sync", "seed", "groups_per_step", "algorithm", "buffer", "tasksets", "selector", "workflow",
    "environment", "rewards", "operators",
)  # fmt: skip
"""Nodes in which an explorer may not differ from its trainer."""
OWN_TRACKERS = ("console", "jsonl")
"""Trackers of the run that an explorer opens for itself."""


async def join_config(
    config: RunConfig, words: Sequence[str], explore_for: Callable[[Run, Path], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    """Check that this explorer plays the same run as the trainer in ``config.join``, then play."""
    assert config.join is not None
    root = Path(config.join).resolve()
    if config.mode != "explore":
        raise ConfigError(f"join={config.join}: only an explorer joins a run. Say mode=explore")
    from omegaconf import OmegaConf

    saved = OmegaConf.to_container(OmegaConf.load(root / "config.yaml"))
    mine = to_plain(config)
    assert isinstance(saved, dict)
    if saved.get("mode") != "train":
        raise ConfigError(
            f"join={config.join}: that run has mode={saved.get('mode')} and hands its weights to nobody else. Start it with mode=train"
        )
    for node in SHARED_NODES:
        if saved.get(node) != mine.get(node):
            raise ConfigError(
                f"join={config.join}: {node} is {mine.get(node)!r} here and {saved.get(node)!r} in that run. Drop the word that changes it"
            )
    theirs = read_json(root / "manifest.json", "the manifest")
    for what, used in manifest(config).items():
        for name, here in used.items():
            there = theirs.get(what, {}).get(name)
            if there is not None and there != here:
                raise ConfigError(
                    f"join={config.join}: {what.removesuffix('s')} {name} is {here} here and {there} there. Install the same version"
                )
    run = Run(config, id=read_json(root / "words.json", "what was typed")["id"], dir=root)
    run.owner = f"explorer-{os.getpid()}-{secrets.token_hex(3)}"
    return await explore_for(run, root)


async def explore_for(run: Run, root: Path) -> dict[str, Any]:
    """Open what playing needs and play until the trainer is done. A trainer that resumed is joined again.

    Logs lie in ``<run>/explorers/<owner>/``. Raises what ended play, also a trainer that has been dead for too long.
    """
    from trinity_core.run.parts import open_play
    from trinity_core.run.session import Stop, stopping, ticking

    logs = root / "explorers" / run.owner
    logs.mkdir(parents=True)
    began, status = time.time(), "failed"
    error: BaseException | None = None
    stop = Stop()
    try:
        with stopping(asyncio.current_task(), stop):
            open_trackers(run, logs)
            run.ledger = run.open("buffer", run.config.part("buffer"))
            run.engine = run.open("engine", run.config.part("engine"))
            run.use_tokenizer(run.engine.tokenizer)
            open_play(run)
            run.tell("started", started(run, root, logs))
            run.ledger.join()
            async with ticking(run):
                await follow(run, root)
        status = "finished"
    except asyncio.CancelledError:
        status = "interrupted"
        error = stop.error(f"interrupted. Join again with: trinity run mode=explore join={root}")
    except Exception as caught:  # noqa: BLE001 - raised below, once the summary is written
        error = caught
    summary = {
        "status": status,
        "owner": run.owner,
        "mode": "explore",
        "dir": str(logs),
        "steps": run.step,
        "groups": run.stored,
        "tokens_sampled": run.tokens_sampled,
        "wall_seconds": round(time.time() - began, 3),
        "error": f"{type(error).__name__}: {error}" if error else None,
    }
    problems = await run.end(summary)
    if problems:
        summary |= {"status": "failed", "error": "; ".join([*([str(summary["error"])] if error else []), *problems])}
    write_json(logs / "summary.json", summary)
    if error is not None:
        for problem in problems:
            error.add_note(problem)
        raise error
    if problems:
        raise RunError("; ".join(problems))
    return summary


def open_trackers(run: Run, logs: Path) -> None:
    """The trackers that write here: terminal and file. Those elsewhere belong to the trainer, one record per run."""
    aside = copy.copy(run)  # the same run, whose folder is this explorer's own
    aside.dir = logs
    for slot, part in run.config.slots("trackers").items():
        if part.name in OWN_TRACKERS:
            run.trackers[slot] = aside.open(f"trackers.{slot}", part.component)


def started(run: Run, root: Path, logs: Path) -> dict[str, Any]:
    """What trackers hear first."""
    explorer = run.config.explorer
    plan = {
        "explorer": [
            ("joins", str(root)),
            ("plays", f"{run.config.algorithm.group_size} attempts a task, {explorer.max_concurrent} at once"),
            ("order", explorer.order),
            ("logs", str(logs)),
        ]
    }
    steps = {"step": run.step, "steps": run.config.steps}
    return {"id": run.id, "dir": str(logs), "mode": "explore", "config": to_plain(run.config), "plan": plan, "resumed": False, **steps}  # fmt: skip


async def follow(run: Run, root: Path) -> None:
    """Play for the trainer, and for every one that takes its place."""
    assert run.engine is not None
    patience_s = 3 * run.config.explorer.place_ttl_s
    while True:
        source = Folders(run.ledger, root, trainer=run.id, patience_s=patience_s)
        if source.over and run.engine.version < 0:
            run.tell(
                "warned", f"that run is {run.ledger.heard('status')}: nothing to play. Resume it first, then join again"
            )
        try:
            await explore(run, source)
            return
        except Fenced:
            run.ledger.join()  # the trainer resumed under a new lineage: its versions are other weights
            run.receipt = None
            run.engine.version = -1
