"""Find plugins, look components up by name, and explain what is missing.

Entry points of the group ``trinity`` are loaded once per process, in order of name, each validated alone
(:mod:`trinity_core.loading`). The built-ins come through the same door.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import EntryPoint, distribution, entry_points
from pathlib import Path
from typing import Any

import pluggy

from trinity_core import __version__, hookspecs, loading
from trinity_core.errors import ComponentNotFound, ConfigError, PluginLoadError
from trinity_core.kinds import DISTRIBUTION_PREFIX, KINDS
from trinity_core.loading import PluginInfo
from trinity_core.markers import NAMESPACE

BUILTINS = "builtins"


@dataclasses.dataclass(frozen=True)
class Registration:
    """One name of one kind, and who registered it."""

    kind: str
    name: str
    target: str
    """``module:attr``"""
    plugin: str
    distribution: str


@dataclasses.dataclass(frozen=True)
class _Registry:
    manager: pluggy.PluginManager
    plugins: tuple[PluginInfo, ...]
    owners: dict[str, dict[str, list[Registration]]]
    """kind -> name -> everyone who registered it"""


@lru_cache(maxsize=1)
def _registry() -> _Registry:
    manager = pluggy.PluginManager(NAMESPACE)
    manager.add_hookspecs(hookspecs)
    builtin = PluginInfo(BUILTINS, "trinity-core", __version__)
    door = EntryPoint(BUILTINS, "trinity_core.builtins.plugin", NAMESPACE)
    found = [loading.load(builtin, door.load, (), manager)]
    seen = {BUILTINS: "trinity-core"}
    for entry in sorted(
        entry_points(group=NAMESPACE), key=lambda entry: (entry.name, entry.dist.name if entry.dist else "")
    ):
        dist = entry.dist
        info = PluginInfo(entry.name, dist.name if dist else "?", dist.version if dist else "?")
        if owner := seen.get(entry.name):
            info.status, info.problems = (
                "broken",
                [f"its plugin name {entry.name!r} is taken by {owner}. Uninstall one of them"],
            )
        else:
            seen[entry.name] = info.distribution
            info = loading.load(info, entry.load, (dist.requires if dist else None) or (), manager)
        found.append(info)
    owners: dict[str, dict[str, list[Registration]]] = {kind: {} for kind in KINDS}
    for info in found:
        for kind, names in info.components.items():
            for name, target in names.items():
                owners[kind].setdefault(name, []).append(Registration(kind, name, target, info.name, info.distribution))
    for kind, by_name in owners.items():
        for name, several in by_name.items():
            if len(several) > 1:
                for info in found:
                    others = [one.plugin for one in several if one.plugin != info.name]
                    if len(others) < len(several):
                        info.problems.append(
                            f"{kind} {name!r} is also provided by {', '.join(others)}: no run can use that name"
                        )
    return _Registry(manager, tuple(found), owners)


def _open_registry() -> _Registry:
    if loading.loading:
        loading.asked.add(loading.loading[-1])
        raise PluginLoadError(
            f"plugin {loading.loading[-1]!r} asked for components while loading: do it in the component"
        )
    return _registry()


def plugins() -> list[PluginInfo]:
    """Every plugin found, the built-ins first, then by name; broken and disabled ones too."""
    return list(_open_registry().plugins)


def catalog(kind: str) -> dict[str, Registration]:
    """The components of ``kind`` by name, sorted. Where a name has several owners, the first (see :func:`resolve`)."""
    if kind not in KINDS:
        raise ConfigError(f"no kind named {kind!r}.{did_you_mean(kind, KINDS)} Kinds: {', '.join(KINDS)}")
    return {name: owners[0] for name, owners in sorted(_open_registry().owners[kind].items())}


def conf_roots() -> list[tuple[str, str]]:
    """(plugin, ``pkg://…``) of every plugin that ships option files."""
    return [(info.name, info.conf) for info in plugins() if info.conf]


def warn_broken() -> None:
    """Say once per process tree, in one line on stderr, which plugins could not be loaded."""
    if os.environ.get("TRINITY_PLUGIN_WARNINGS") == "0":
        return
    broken = [f"{info.distribution}: {info.problems[0]}" for info in plugins() if info.status == "broken"]
    if broken:
        print(f"trinity: plugins not loaded: {'; '.join(broken)} (see: trinity plugins)", file=sys.stderr)
    os.environ["TRINITY_PLUGIN_WARNINGS"] = "0"  # children stay silent


def registration(kind: str, name: str) -> Registration:
    """Who registered ``kind/name``. Raises :class:`ComponentNotFound`, or :class:`PluginLoadError` for two owners."""
    catalog(kind)
    owners = _open_registry().owners[kind].get(name, [])
    if not owners:
        raise ComponentNotFound(explain_missing(kind, name))
    if len(owners) > 1:
        who = " and ".join(f"{one.plugin!r} ({one.distribution})" for one in owners)
        last = next(one.plugin for one in reversed(owners) if one.plugin != BUILTINS)
        raise PluginLoadError(f"{kind} {name!r} is provided by {who}. Switch one off: TRINITY_DISABLE_PLUGINS={last}")
    return owners[0]


def resolve(kind: str, name: str) -> type:
    """The class of a component: ``name`` as registered, or an import string ``module:Class``.

    Raises :class:`ComponentNotFound` for an unknown name, :class:`PluginLoadError` where its module cannot be used,
    :class:`ConfigError` for a class that is not of ``kind`` or no frozen dataclass.
    """
    from trinity_core import protocols

    target = name if ":" in name else registration(kind, name).target
    cls = import_target(target, what=f"{kind} {name!r}")
    protocol = getattr(protocols, KINDS[kind].protocol)
    if not isinstance(cls, type):
        raise ConfigError(
            f"{kind} {name!r}: {target} is not a class. A {kind} is a frozen dataclass that subclasses {protocol.__name__}"
        )
    if not issubclass(cls, protocol):
        other = next((k for k in KINDS.values() if issubclass(cls, getattr(protocols, k.protocol))), None)
        so = (
            f"is of kind {other.name}, not {kind}"
            if other
            else f"does not subclass trinity_core.protocols.{protocol.__name__}"
        )
        raise ConfigError(f"{kind} {name!r}: {target} {so}. Options: {', '.join(catalog(kind)) or 'none installed'}")
    if not (dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise ConfigError(f"{kind} {name!r}: {target} is not a frozen dataclass. Put @dataclass(frozen=True) above it")
    return cls


def import_target(target: str, *, what: str) -> Any:
    """Import ``module:attr``; every failure is a :class:`PluginLoadError` that names the module and the way on."""
    module, _, attribute = target.partition(":")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(error.name + ".")):
            raise PluginLoadError(
                f"{what}: there is no module {error.name!r}. Looked in this folder, the project's and what is installed"
            ) from error
        raise PluginLoadError(
            f"{what}: module {module!r} needs {error.name!r}, which is not installed: {_install(error.name)}"
        ) from error
    except SystemExit as error:
        raise PluginLoadError(f"{what}: importing {module!r} calls sys.exit({error.code!r})") from error
    except Exception as error:
        raise PluginLoadError(f"{what}: importing {module!r} failed: {type(error).__name__}: {error}") from error
    try:
        return getattr(loaded, attribute)
    except AttributeError as error:
        names = [name for name, value in vars(loaded).items() if isinstance(value, type) and value.__module__ == module]
        raise PluginLoadError(
            f"{what}: module {module!r} has no {attribute!r}.{did_you_mean(attribute, names)} Classes: {', '.join(names) or 'none'}"
        ) from error


EXTRAS = dict.fromkeys(("torch", "transformers", "peft", "safetensors", "gguf"), "local") | {
    "wandb": "wandb",
    "tensorboard": "tensorboard",
}


def _install(module: str | None) -> str:
    root = (module or "").partition(".")[0]
    return f'pip install "trinity-core[{EXTRAS[root]}]"' if root in EXTRAS else f"pip install {root}"


def explain_missing(kind: str, name: str) -> str:
    """Why ``kind/name`` does not exist here and what would help."""
    from importlib.metadata import PackageNotFoundError

    names = list(catalog(kind))
    lines = [f"no {kind} named {name!r}.{did_you_mean(name, names)}"]
    ask = _open_registry().manager.hook.trinity_install_hint
    try:
        home = loading.attempt("trinity_install_hint", lambda: ask(kind=kind, name=name))
    except loading.Broken as error:
        home = None
        lines.append(f"(a plugin's hint failed: {error})")
    by_distribution = {info.distribution: info for info in plugins()}
    if home in by_distribution and by_distribution[home].status != "ok":
        lines.append(
            f"It comes with {home}, which is installed but {by_distribution[home].status}: {by_distribution[home].problems[0]}"
        )
    elif home:
        try:
            lines.append(
                f"It comes with {home}, but version {distribution(home).version} does not register it: pip install --upgrade {home}"
            )
        except PackageNotFoundError:
            lines.append(f"It comes with a plugin: pip install {_source_of(home)}")
    else:
        lines += [
            f"Plugin {i.distribution} is {i.status}, perhaps it would provide it: {i.problems[0]}"
            for i in plugins()
            if i.status != "ok"
        ]
    lines.append(f"Installed: {', '.join(names) or f'none; plugins are called {DISTRIBUTION_PREFIX}<name>'}")
    return "\n  ".join(lines)


def _source_of(plugin: str) -> str:
    """What pip installs ``plugin`` from: its folder under ``plugins/`` of a checkout, where there is one."""
    from trinity_core.config.project import find_project

    folder = f"plugins/{plugin.removeprefix(DISTRIBUTION_PREFIX)}"
    for root in (Path.cwd(), find_project()):
        if root is not None and (root / folder / "pyproject.toml").is_file():
            return f"./{folder}" if root == Path.cwd() else str(root / folder)
    return plugin


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?``, or nothing where nothing is near."""
    close = difflib.get_close_matches(name, list(known), n=3)
    # letters that changed places are the likeliest slip: gpro is grpo, not gspo
    close.sort(key=lambda found: sorted(found) != sorted(name))
    return f" Did you mean {close[0]!r}?" if close else ""
