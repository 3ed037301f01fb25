"""Positional arguments of the small commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trinity_core.errors import ConfigError


def positional(argv: Sequence[str], usage: str, names: Sequence[str]) -> list[str] | None:
    """The arguments called ``names``; ``None`` where help was asked for (and printed)."""
    if any(word in ("-h", "--help") for word in argv):
        print(usage)
        return None
    if len(argv) != len(names):
        raise ConfigError(f"expected {' '.join(names)}, got {len(argv)} argument(s).\n{usage}")
    return list(argv)


def run_folder(word: str) -> Path:
    """An existing run folder."""
    path = Path(word)
    if not path.is_dir():
        raise ConfigError(f"{word}: no such folder. Name the folder of a run")
    if (path / "stages.json").exists():
        stages = sorted(file.parent.name for file in path.glob("*/words.json"))
        raise ConfigError(f"{word}: a run of stages. Name the folder of one: {', '.join(stages) or 'none has begun'}")
    if not (path / "words.json").exists():
        raise ConfigError(f"{word}: not the folder of a run (it has no words.json). Name the folder that a run printed")
    return path
