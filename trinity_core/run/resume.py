"""Resuming: compose again from the words typed then and now, and refuse a difference that nobody asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trinity_core.config.plain import to_plain
from trinity_core.config.schema import RunConfig
from trinity_core.errors import ConfigError
from trinity_core.run.folder import read_json

HERE_AND_NOW = ("resume", "resume_config", "out", "join")
"""Words that belong to one command line, not to the run."""
FREE = ("steps", "eval", "trackers", "checkpoint", "threads", "mode", *HERE_AND_NOW)
"""Nodes that a resume may change when it says so."""
FIXED = ("model", "seed", "groups_per_step", "buffer", "algorithm.group_size", "sync", "tasksets", "selector")
"""Nodes that a run keeps for life."""


def typed(words: Sequence[str]) -> dict[str, str]:
    """``{path: value}`` of the words that set something."""
    found = {}
    for word in words:
        path, sign, value = word.lstrip("+~").partition("=")
        found[path] = value if sign else ""
    return found


def expand(words: Sequence[str]) -> list[str]:
    """The words of a run that goes on (``resume=DIR``) or is joined (``join=DIR``): those typed then, then those typed now."""
    now = typed(words)
    source = now.get("resume") or now.get("join")
    if not source or source == "null":
        return list(words)
    folder = Path(source)
    what = "resume" if now.get("resume") else "join"
    if not (folder / "words.json").is_file():
        raise ConfigError(
            f"{what}={source}: not a run folder (it has no words.json). Name the folder that a run printed"
        )
    return [*read_json(folder / "words.json", "what was typed")["words"], *words]


def identity(folder: Path, words: Sequence[str], *, fresh: str) -> tuple[str, list[str]]:
    """The run's id (a fresh one for a new run) and the words to remember: without those of this command line alone."""
    kept = [word for word in words if next(iter(typed([word]))) not in HERE_AND_NOW]
    path = folder / "words.json"
    if path.exists():
        return read_json(path, "what was typed")["id"], kept
    return fresh, kept


def compare(config: RunConfig, folder: Path, words: Sequence[str]) -> None:
    """Refuse a resume whose config differs from the saved one in a path that was not typed now, or may never change."""
    from omegaconf import OmegaConf

    path = folder / "config.yaml"
    if not path.is_file():
        return  # it stopped before its config was written: there is nothing to differ from
    saved = OmegaConf.to_container(OmegaConf.load(path))
    before = read_json(folder / "words.json", "what was typed")["words"]
    now = typed(words[len(before) :] if list(words[: len(before)]) == list(before) else words)
    for where, then, today in differences(saved, to_plain(config)):
        if any(_under(where, name) for name in HERE_AND_NOW):
            continue
        asked = any(_under(where, name) or _under(name, where) or name.endswith("@" + where) for name in now)
        if any(_under(where, name) for name in FIXED):
            raise ConfigError(
                f"resume={folder}: {where} was {then!r} and is now {today!r}; a run keeps it for life. "
                f"Leave it as it was, or start a new run"
            )
        if not asked and config.resume_config == "refuse":
            raise ConfigError(
                f"resume={folder}: {where} was {then!r} and is now {today!r}, and nobody typed that (a changed file or plugin?). "
                f"Go on with the old value by {where}={then}, or take the new config with resume_config=new"
            )


def differences(then: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """``(path, then, now)`` of every leaf that differs."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*then, *(key for key in now if key not in then)]:
            yield from differences(then.get(key), now.get(key), f"{path}.{key}" if path else str(key))
    elif _plain(then) != _plain(now):
        yield path, then, now


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _under(path: str, node: str) -> bool:
    return path == node or path.startswith(node + ".")
