"""Load one plugin and validate it alone: whatever it does becomes a line about that plugin."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pluggy

from trinity_core import __version__, hookspecs
from trinity_core.kinds import KINDS
from trinity_core.markers import NAMESPACE

SLOW_S = 0.2
"""A plugin that takes longer to load is said to be slow: every command pays for it."""
KIND_OF_HOOK = {kind.hook: kind.name for kind in KINDS.values()}
SPECS = {
    name: tuple(inspect.signature(spec).parameters)
    for name, spec in vars(hookspecs).items()
    if name.startswith("trinity_")
}
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")

loading: list[str] = []
"""Plugins being loaded now (innermost last); :mod:`trinity_core.plugins` refuses questions meanwhile."""
asked: set[str] = set()
"""Plugins that asked for components while loading, even if they swallowed the refusal."""


class Broken(Exception):
    """Why a plugin cannot be used."""


@dataclass
class PluginInfo:
    """One plugin as found: what it registers, or why it does not."""

    name: str
    """Name of its entry point."""
    distribution: str
    version: str
    status: str = "ok"
    """*ok, broken, disabled*"""
    seconds: float = 0.0
    """Time to load it."""
    components: dict[str, dict[str, str]] = field(default_factory=dict)
    """kind -> name -> import string"""
    conf: str | None = None
    """Root of its option files, e.g. ``pkg://trinity_sql.conf``."""
    problems: list[str] = field(default_factory=list)
    """One line each. A broken plugin's first line is the reason."""


def load(
    info: PluginInfo, get: Callable[[], Any], requires: Iterable[str], manager: pluggy.PluginManager
) -> PluginInfo:
    """Load the plugin that ``get`` imports, validate it and register it; never raises for what a plugin does."""
    if blocked := disabled() & {info.name, info.distribution}:
        info.status, info.problems = "disabled", [f"disabled by TRINITY_DISABLE_PLUGINS={blocked.pop()}"]
        return info
    started = time.perf_counter()
    said = io.StringIO()
    loading.append(info.name)
    plugin: Any = None
    try:
        with contextlib.redirect_stdout(said):
            _check_pin(requires)
            plugin = attempt("import", get)
            info.problems += _check_hooks(plugin)
            manager.register(plugin, name=info.name)
            _collect(plugin, info)
            if info.name in asked:
                raise Broken("asked for components while loading: do it in the component")
    except Broken as error:
        reason = "asked for components while loading: do it in the component" if info.name in asked else str(error)
        info.status, info.components, info.conf = "broken", {}, None
        info.problems.insert(0, " ".join(reason.split()))
        if plugin is not None and manager.is_registered(plugin):
            manager.unregister(plugin)
    finally:
        loading.pop()
        info.seconds = time.perf_counter() - started
    if printed := said.getvalue().strip():
        print(said.getvalue(), file=sys.stderr, end="")
        info.problems.append(f"prints while loading: {printed.splitlines()[0][:80]!r}")
    if info.seconds > SLOW_S:
        info.problems.append(f"slow to load: {info.seconds:.1f} s. Import what is heavy in the component's module")
    return info


def disabled() -> set[str]:
    """Plugins or distributions that ``TRINITY_DISABLE_PLUGINS`` names."""
    return {name.strip() for name in os.environ.get("TRINITY_DISABLE_PLUGINS", "").split(",") if name.strip()}


def attempt(what: str, call: Callable[[], Any]) -> Any:
    """``call()``; whatever it raises, ``SystemExit`` too, becomes :class:`Broken`."""
    try:
        return call()
    except SystemExit as error:
        raise Broken(f"{what}: calls sys.exit({error.code!r})") from error
    except Exception as error:
        raise Broken(f"{what}: {type(error).__name__}: {error}") from error


def _check_pin(requires: Iterable[str]) -> None:
    """Our version against the ``Requires-Dist`` pin of the plugin: editable installs skip pip's check."""
    lines = [line for line in requires if line.lower().replace("_", "-").startswith("trinity-core")]
    if not lines:
        return
    from packaging.requirements import InvalidRequirement, Requirement

    for line in lines:
        try:
            pin = Requirement(line)
        except InvalidRequirement:
            continue  # pip's business, not ours
        if pin.name.lower().replace("_", "-") == "trinity-core" and not pin.specifier.contains(
            __version__, prereleases=True
        ):
            raise Broken(f"needs trinity-core{pin.specifier}, this is {__version__}. Upgrade one of them")


def _functions(plugin: Any) -> Iterator[tuple[str, Any, Mapping[str, Any] | None]]:
    """(attribute, function, hookimpl options or ``None``) of everything that is, or looks like, a hook."""
    for attribute in dir(plugin):
        function = getattr(plugin, attribute, None)
        if not inspect.isroutine(function):
            continue
        options = getattr(function, f"{NAMESPACE}_impl", None)
        if isinstance(options, Mapping) or attribute.startswith(f"{NAMESPACE}_"):
            yield attribute, function, options if isinstance(options, Mapping) else None


def _check_hooks(plugin: Any) -> list[str]:
    """Refuse unknown hooks and arguments; return what is suspicious."""
    problems, marked, bare = [], 0, []
    for attribute, function, options in _functions(plugin):
        if options is None:
            bare.append(attribute)
            continue
        marked += 1
        hook = options.get("specname") or attribute
        if hook not in SPECS:
            if options.get("optionalhook"):
                continue
            close = difflib.get_close_matches(hook, SPECS, n=1)
            hint = (
                f"Did you mean {close[0]!r}?" if close else f"Perhaps it needs a newer trinity-core than {__version__}"
            )
            raise Broken(f"unknown hook {hook!r}. {hint}")
        for argument in inspect.signature(function).parameters:
            if argument not in SPECS[hook]:
                raise Broken(
                    f"{hook} takes an unknown argument {argument!r}. Arguments: {', '.join(SPECS[hook]) or 'none'}"
                )
    if not marked:
        problems.append(
            "registers nothing" + (f": {bare[0]} lacks @hookimpl" if bare else ": it has no function marked @hookimpl")
        )
    elif known := [name for name in bare if name in SPECS]:
        problems.append(f"{known[0]} lacks @hookimpl and is not used")
    return problems


def _collect(plugin: Any, info: PluginInfo) -> None:
    """Call every registering hook of ``plugin`` and check what it returns."""
    for attribute, function, options in _functions(plugin):
        hook = (options or {}).get("specname") or attribute
        if options is None or hook not in SPECS or hook == "trinity_install_hint":
            continue
        value = attempt(hook, function)
        if hook == "trinity_conf":
            info.conf = _conf(value)
            continue
        if not isinstance(value, Mapping):
            raise Broken(f'{hook} returned a {type(value).__name__}, expected a mapping {{"name": "module:attr"}}')
        for name, target in value.items():
            if not (isinstance(name, str) and NAME.match(name)):
                raise Broken(f"{hook}: {name!r} is no name: letters, digits and underscores")
            if not (isinstance(target, str) and TARGET.match(target)):
                raise Broken(f'{hook}: {name!r} maps to {target!r}, expected "module:attr"')
        info.components.setdefault(KIND_OF_HOOK[hook], {}).update(value)


def _conf(value: Any) -> str:
    if not (isinstance(value, str) and value.startswith("pkg://")):
        raise Broken(f'trinity_conf returned {value!r}, expected "pkg://package.conf"')
    package = value.removeprefix("pkg://").replace("/", ".")
    spec = attempt("trinity_conf", lambda: _find(package))
    if spec is None or spec.submodule_search_locations is None:
        raise Broken(f"trinity_conf returned {value!r}, but there is no package {package!r}. Is conf/ in the wheel?")
    return value


def _find(package: str) -> Any:
    try:
        return importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return None
