"""One pass over a composed run, before anything is loaded. Every node is a component (has ``name``) or part of the root
schema; nothing else may exist. Each refusal is a :class:`ConfigError` with the full path and the fix."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue, OmegaConfBaseException

from trinity_core.config.build import build, join, unknown
from trinity_core.config.plain import snake_case, to_plain
from trinity_core.config.rules import refuse_combinations
from trinity_core.config.schema import Evaluation, Part, RewardSlot, RunConfig, Slot
from trinity_core.config.secrets import refuse_secrets
from trinity_core.errors import ConfigError, PluginLoadError, TrinityError
from trinity_core.kinds import CONFIG_KINDS, Kind
from trinity_core.plugins import catalog, resolve

__all__ = ["check", "to_plain"]
SLOTS: dict[str, type[Slot]] = {"taskset": Slot, "reward": RewardSlot}
"""What the kernel knows of a slot of each plural kind; the others have no keys of the kernel."""


def check(cfg: DictConfig) -> RunConfig:
    """A composed tree as a checked, frozen run. Imports the components it names and loads nothing else."""
    refuse_secrets(OmegaConf.to_container(cfg, resolve=False))
    tree = _resolved(cfg)
    refuse_secrets(tree)  # again: an interpolation may have put a password into a URL
    _refuse_root_keys(tree)
    _refuse_stages(tree)
    parts = {part.path: part for part in _components(tree)}
    config = build(RunConfig, tree, "", "a run")
    config = dataclasses.replace(config, parts=parts)
    refuse_combinations(config)
    return config


def _refuse_root_keys(tree: dict[str, Any]) -> None:
    """Before any component is imported, so that a slip is answered at once. A name that belongs deeper says where."""
    root = [field.name for field in dataclasses.fields(RunConfig) if field.name != "parts"]
    known = [*root, *_nodes()]
    for key in tree:
        if key in known:
            continue
        if kind := CONFIG_KINDS.get(str(key)):
            raise ConfigError(_wrong_node(kind, tree[key]))
        if places := _deeper(tree, str(key), known):
            raise ConfigError(f"{key}: a run has no such option at its root. Did you mean {' or '.join(places)}?")
        raise unknown(str(key), "a run", str(key), known)


def _refuse_stages(tree: Mapping[str, Any]) -> None:
    """A checked config is one run."""
    if tree.get("stages"):
        raise ConfigError(
            "stages: this is the config of one run, and each stage has its own: trinity run composes them "
            "(trinity_core.config.stages). For one run write stages=[]"
        )
    if over := tree.get("over"):
        named = ", ".join(map(str, over))
        raise ConfigError(f"over: words for {named}, and this run has no stages. Drop over, or write 'stages=[…]' too")


def _deeper(tree: Mapping[str, Any], key: str, known: list[str]) -> list[str]:
    """Paths of values called ``key``, or nearly so where nothing at the root is nearer."""
    paths = [path for path in _leaves(tree) if "." in path]
    names = [path.rpartition(".")[2] for path in paths]
    wanted = key if key in names else next(iter(difflib.get_close_matches(key, [*known, *names], n=1)), "")
    return [] if wanted in known else [path for path, name in zip(paths, names) if name == wanted]


def _leaves(node: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Paths of all values of ``node``."""
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, join(path, str(key)))
        else:
            yield join(path, str(key))


def _resolved(cfg: DictConfig) -> dict[str, Any]:
    """Interpolations filled in; a missing value, an unset variable or a broken reference is named with its path."""
    try:
        container = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        path = _path(cfg, error) or "?"
        raise ConfigError(f"{path}: a value is needed: {path}=…") from None
    except InterpolationResolutionError as error:
        path = _path(cfg, error) or "?"
        if found := re.search(r"Environment variable '([^']+)' not found", str(error)):
            raise ConfigError(
                f"{path}: environment variable {found[1]} is not set. Set it, or give the value: {path}=…"
            ) from None
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"{_path(cfg, error)}: {str(error).splitlines()[0]}") from None
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _path(cfg: DictConfig, error: OmegaConfBaseException) -> str:
    return str(error.full_key or "")


def _components(tree: dict[str, Any]) -> list[Part]:
    """Take every component out of ``tree``, which keeps what the root schema knows."""
    parts = []
    for kind in CONFIG_KINDS.values():
        node = tree.pop(kind.node, None)
        if kind.plural:
            parts += _slots(kind, node, kind.plural)
        elif node is not None:
            parts.append(_component(kind, node, kind.name))
        elif not kind.optional:
            raise ConfigError(f"{kind.name}: a run needs one. Options: {', '.join(catalog(kind.name))}")
    if isinstance(evaluation := tree.get("eval"), Mapping):
        evaluation = tree["eval"] = dict(evaluation)
        parts += _slots(CONFIG_KINDS["taskset"], evaluation.pop("tasksets", None), "eval.tasksets")
        for key in evaluation:
            if key not in (known := [field.name for field in dataclasses.fields(Evaluation)]):
                raise unknown(f"eval.{key}", "eval", str(key), [*known, "tasksets"])
    for role, node in _map(tree.pop("models", None), "models").items():
        path = f"models.{role}"
        for key in _map(node, path):
            if key != "engine":
                raise unknown(join(path, str(key)), f"the auxiliary model {role!r}", str(key), ["engine"])
        if "engine" not in node:
            raise ConfigError(f"{path}: an auxiliary model needs an engine: +engine@{path}.engine=NAME")
        parts.append(_component(CONFIG_KINDS["engine"], node["engine"], f"{path}.engine"))
    return parts


def _slots(kind: Kind, node: Any, path: str) -> list[Part]:
    slots = _map(node, path)
    for slot, values in slots.items():
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{path}.{slot}: expected {_a(kind.name)}, got {values!r}. Fill a slot with +{kind.name}@{path}.{slot}=NAME"
            )
    named = [slot for slot, values in slots.items() if "name" in values]
    return [_component(kind, values, f"{path}.{slot}", others=named) for slot, values in slots.items()]


def _component(kind: Kind, node: Any, path: str, others: list[str] | None = None) -> Part:
    """One component: its name resolved, its slot's keys apart, its own values checked."""
    if not isinstance(node, Mapping):
        raise ConfigError(f"{path}: expected {_a(kind.name)}, got {node!r}. Options: {', '.join(catalog(kind.name))}")
    if "name" not in node:
        raise ConfigError(_unfilled(kind, path, others or []))
    name = node["name"]
    if not isinstance(name, str):
        raise ConfigError(
            f"{path}.name: expected the name of a {kind.name}, got {name!r}. Options: {', '.join(catalog(kind.name))}"
        )
    try:
        cls = resolve(kind.name, name)
    except TrinityError as error:
        raise type(error)(f"{path}: {error}") from error
    slot_cls = SLOTS.get(kind.name)
    keys = [field.name for field in dataclasses.fields(slot_cls)] if slot_cls else []
    if clash := {field.name for field in dataclasses.fields(cls)} & {"name", *keys}:
        raise PluginLoadError(
            f"{path}: {name!r} has a field {min(clash)!r}, a key that belongs to the kernel. Rename the field"
        )
    own = {str(key): value for key, value in node.items() if key != "name" and key not in keys}
    component: Any = build(cls, own, path, repr(name), also=keys)
    slot = build(slot_cls, {key: node[key] for key in keys if key in node}, path, "the slot") if slot_cls else None
    return Part(kind.name, name, path, component, slot)


def _unfilled(kind: Kind, path: str, others: list[str]) -> str:
    """Values that stand where no option was selected."""
    last = path.rpartition(".")[2]
    close = [snake_case(last)] if snake_case(last) in others else difflib.get_close_matches(last.lower(), others, n=1)
    filled = f" Slots filled: {', '.join(others)}." if others else ""
    mean = f" Did you mean {path.removesuffix(last)}{close[0]}?" if close else filled
    plus = "+" if "." in path else ""
    select = f"{plus}{kind.name}@{path}=NAME" if plus else f"{kind.name}=NAME"
    return f"{path}: values for {_a(kind.name)} that no option fills.{mean} Select one ({select}) or drop them (~{path}). Options: {', '.join(catalog(kind.name))}"


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeio' else 'a'} {noun}"


def _wrong_node(kind: Kind, value: Any) -> str:
    """A plural kind under its singular: an option file without its package line, or a plain misspelling."""
    name = value.get("name", "NAME") if isinstance(value, Mapping) else "NAME"
    return (
        f"{kind.name}: {kind.name}s stand under {kind.plural}.<slot>. An option file of this kind starts with "
        f"'# @package {kind.plural}.{name}'; values are set as {kind.plural}.{name}.KEY=VALUE"
    )


def _map(node: Any, path: str) -> dict[str, Any]:
    if node is None:
        return {}
    if not isinstance(node, Mapping):
        raise ConfigError(f"{path}: expected a map from slot to component, got {node!r}")
    return {str(key): value for key, value in node.items()}


def _nodes() -> list[str]:
    return [*(kind.node for kind in CONFIG_KINDS.values()), "models"]
