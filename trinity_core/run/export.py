"""``trinity export RUN DIR``: the trained policy of a run as a plain folder that other libraries load."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trinity_core.errors import ConfigError, RunError
from trinity_core.run import checkpoint
from trinity_core.run.folder import read_json


def export(run: Path, folder: Path) -> Path:
    """Open the run's backend, load its newest checkpoint, write the policy to ``folder`` (new or empty)."""
    from trinity_core.config.check import check
    from trinity_core.config.compose import compose
    from trinity_core.run.context import Run

    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: not empty. Name a new folder")
    words = read_json(run / "words.json", "what was typed")
    last = checkpoint.newest(run / "checkpoints")
    if last is None:
        raise RunError(f"{run}: no checkpoint to export")
    checkpoint.load_state(last)
    config = check(compose(words["words"]))
    context = Run(config, id=words["id"], dir=run.resolve())
    backend = config.part("backend").open(context)
    try:
        backend.load(last / checkpoint.BACKEND)
        folder.mkdir(parents=True, exist_ok=True)
        backend.export(folder)
        _readable(folder)
    finally:
        backend.close()
    return folder


def export_whole(run: Path, folder: Path) -> Path:
    """:func:`export`, written aside, synced and renamed: ``folder`` holds all of it or does not exist."""
    aside = folder.with_name(f".{folder.name}.tmp")
    if aside.exists():  # of a process that was killed
        shutil.rmtree(aside)
    export(run, aside)
    for path in (*aside.rglob("*"), aside):
        checkpoint.fsync(path)
    os.replace(aside, folder)
    checkpoint.fsync(folder.parent)
    return folder


def _readable(folder: Path) -> None:
    """Give every file the mode that the user's umask asks for: safetensors writes its own for the owner alone."""
    umask = os.umask(0)
    os.umask(umask)
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o666 & ~umask)
