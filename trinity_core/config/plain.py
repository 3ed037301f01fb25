"""Components and config nodes as plain data, the form in which they are composed, saved and compared."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping, Set
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from trinity_core.config.manifest import manifest
from trinity_core.config.secrets import redact

if TYPE_CHECKING:
    from trinity_core.config.schema import Part, RunConfig

__all__ = ["MISSING", "defaults_of", "manifest", "part_to_plain", "plain", "snake_case", "to_plain"]

MISSING = "???"
"""What OmegaConf reads as "a value is needed"."""


def plain(value: Any) -> Any:
    """``value`` as maps, lists, strings, numbers and ``None``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Set):
        return sorted((plain(item) for item in value), key=repr)
    return str(value) if isinstance(value, PurePath) else value


def defaults_of(cls: type) -> dict[str, Any]:
    """The option file that equals ``cls``: each field at its default, ``???`` where it has none."""
    values = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        if field.default is not dataclasses.MISSING:
            values[field.name] = plain(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            values[field.name] = plain(field.default_factory())
        else:
            values[field.name] = MISSING
    return values


def snake_case(name: str) -> str:
    """``GroupRelative`` -> ``group_relative``, ``PPOClip`` -> ``ppo_clip``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def part_to_plain(part: Part) -> dict[str, Any]:
    """One component as its node: name, the slot's keys, every field."""
    return {"name": part.name, **(plain(part.slot) if part.slot else {}), **plain(part.component)}


def to_plain(config: RunConfig) -> dict[str, Any]:
    """Every field of every node and component of a run, redacted: what is saved as ``config.yaml``.

    Composed and checked again it gives an equal :class:`~trinity_core.config.schema.RunConfig`.
    """
    from trinity_core.kinds import CONFIG_KINDS

    tree: dict[str, Any] = {
        f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(config) if f.name != "parts"
    }
    for kind in CONFIG_KINDS.values():
        tree[kind.node] = {} if kind.plural else None
    tree["eval"]["tasksets"] = {}
    tree["models"] = {}
    for part in config.parts.values():
        *parents, last = part.path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = part_to_plain(part)
    result: dict[str, Any] = redact(tree)
    return result
