"""An explorer in a process of its own: it reads the trainer's folder, plays for it, and writes only its own logs."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from trinity_core.config.plain import manifest, to_plain
from trinity_core.config.schema import RunConfig
from trinity_core.errors import ConfigError, Fenced
from trinity_core.run.context import Run
from trinity_core.run.folder import read_json, write_json
from trinity_core.run.loop import explore
from trinity_core.run.source import Folders

SHARED_NODES = (
    "model", "sampling", "sync", "seed", "groups_per_step", "algorithm", "buffer", "tasksets", "selector", "workflow",
    "environment", "rewards", "operators",
)  # fmt: skip
"""Nodes in which an explorer may not differ from its trainer."""


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
    """Open what playing needs and play until the trainer is done. A trainer that resumed is joined again."""
    from trinity_core.run.parts import open_play
    from trinity_core.run.session import stopping, ticking

    logs = root / "explorers" / run.owner
    logs.mkdir(parents=True)
    began, status, error = time.time(), "failed", None
    try:
        with stopping(asyncio.current_task()):
            run.ledger = run.open("buffer", run.config.part("buffer"))
            run.engine = run.open("engine", run.config.part("engine"))
            run.use_tokenizer(run.engine.tokenizer)
            open_play(run)
            run.ledger.join()
            async with ticking(run):
                while True:
                    try:
                        await explore(run, Folders(run.ledger, root))
                        break
                    except Fenced:
                        run.ledger.join()  # the trainer resumed under a new lineage: its versions are other weights
                        run.receipt = None
                        run.engine.version = -1
        status = "finished"
    except asyncio.CancelledError:
        status = "interrupted"
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
        raise
    finally:
        summary = {
            "status": status,
            "owner": run.owner,
            "mode": "explore",
            "dir": str(logs),
            "groups": run.scheduler.counters.groups if run.scheduler else 0,
            "tokens_sampled": run.tokens_sampled,
            "wall_seconds": round(time.time() - began, 3),
            "error": error,
        }
        write_json(logs / "summary.json", summary)
        await run.close()
    return summary
