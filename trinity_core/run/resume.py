"""Resuming: compose again from the words typed then and now, and refuse a difference that nobody asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trinity_core.config.plain import to_plain
from trinity_core.config.schema import RunConfig
from trinity_core.errors import ConfigError
from trinity_core.kinds import CONFIG_KINDS
from trinity_core.run.folder import read_json

HERE_AND_NOW = ("resume", "resume_config", "out", "join")
"""Words that belong to one command line, not to the run."""
FIXED = ("model", "seed", "groups_per_step", "buffer", "algorithm.group_size", "sync", "tasksets", "selector")
"""Nodes that a run keeps for life."""


def typed(words: Sequence[str]) -> dict[str, str]:
    """``{path: value}`` of the words that set something."""
    found = {}
    for word in words:
        path, sign, value = word.lstrip("+~").partition("=")
        found[path] = value.strip("'\"") if sign else ""
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
    """Refuse a resume whose config differs from the saved one in a path that was not typed, or may never change."""
    from omegaconf import OmegaConf

    path = folder / "config.yaml"
    if not path.is_file():
        return  # it stopped before its config was written: there is nothing to differ from
    saved = OmegaConf.to_container(OmegaConf.load(path))
    before = read_json(folder / "words.json", "what was typed")["words"]
    asked = asked_for(words, before)
    for where, then, today in differences(saved, to_plain(config)):
        if any(_under(where, name) for name in HERE_AND_NOW):
            continue
        if any(_under(where, name) for name in FIXED):
            raise ConfigError(
                f"resume={folder}: {where} was {then!r} and is now {today!r}; a run keeps it for life. "
                f"Leave it as it was, or start a new run"
            )
        if config.resume_config == "refuse" and not any(_under(where, name) or _under(name, where) for name in asked):
            raise ConfigError(
                f"resume={folder}: {where} was {then!r} and is now {today!r}, and nobody typed that (a changed file or plugin?). "
                f"Go on with the old value by {where}={then}, or take the new config with resume_config=new"
            )


def asked_for(words: Sequence[str], before: Sequence[str]) -> set[str]:
    """Nodes that somebody typed: by the words of now, each value and each group with all that it selects; and by each value
    typed earlier (a run that died between writing its words and its config has it only there)."""
    now = words[len(before) :] if list(words[: len(before)]) == list(before) else words
    asked = set()
    for key in typed(now):
        group, _, package = key.partition("@")
        if package:
            asked.add(package)
        elif group in CONFIG_KINDS:
            asked.add(CONFIG_KINDS[group].node)
        elif group == "algorithm":  # a preset selects every part of an algorithm
            asked |= {"algorithm", "advantage", "loss", "sample_strategy", "critic", "operators"}
        elif group == "recipe":
            asked.add("")
        else:
            asked.add(key)
    return asked | {key for key in typed(before) if "." in key or key not in (*CONFIG_KINDS, "algorithm", "recipe")}


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
    return node in ("", path) or path.startswith(node + ".")
