"""The two Hydra plugins of the kernel; plugin authors write none.

The search path is: Hydra's own, the project's ``conf/``, the kernel's, each plugin's, and last the source that serves
import strings and registered components without an option file, and explains what is missing.
"""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from trinity_core.config.plain import defaults_of, snake_case
from trinity_core.errors import ComponentNotFound
from trinity_core.kinds import CONFIG_KINDS
from trinity_core.plugins import catalog, conf_roots, did_you_mean, explain_missing, resolve

SCHEME = "trinity-last"
GROUPS = ("model", "critic", "algorithm", "recipe", "sweep")
"""Groups of :file:`run.yaml` that hold no components."""

composing: ContextVar[bool] = ContextVar("composing", default=False)
"""Whether this process composes a run of ours now: other Hydra applications in it are left alone."""
project: ContextVar[Path | None] = ContextVar("project", default=None)
"""The project of the run being composed."""


class TrinitySearchPath(SearchPathPlugin):
    """Adds the project's, each plugin's and the last source."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if not composing.get():
            return
        if folder := project.get():
            search_path.prepend(provider="trinity:project", path=f"file://{folder / 'conf'}", anchor="main")
        for name, root in conf_roots():
            search_path.append(provider=f"trinity:{name}", path=root)
        search_path.append(provider="trinity:last", path=f"{SCHEME}://")


class LastSource(ConfigSource):
    """Claims every option that no file provides: builds it from the dataclass, or says what would help."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in CONFIG_KINDS or config_path in GROUPS

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.removesuffix(".yaml").partition("/")
        return name not in ("", "None") and self.is_group(group)  # Hydra asks for "None" where a group is null

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return list(catalog(config_path)) if config_path in CONFIG_KINDS else []

    def load_config(self, config_path: str) -> ConfigResult:
        group, _, name = config_path.removesuffix(".yaml").partition("/")
        if group not in CONFIG_KINDS:
            raise ComponentNotFound(
                f"no {group} named {name!r}.{did_you_mean(name, options(group))} Options: {', '.join(options(group))}"
            )
        if ":" not in name and name not in catalog(group):
            known = [option for option in options(group) if option not in catalog(group)]
            close = did_you_mean(name, known)
            raise ComponentNotFound(
                explain_missing(group, name) + (f"\n  Option files: {', '.join(known)}.{close}" if known else "")
            )
        kind = CONFIG_KINDS[group]
        slot = snake_case(name.rpartition(":")[2]) if ":" in name else name
        package = f"{kind.plural}.{slot}" if kind.plural else None
        node: dict[str, Any] = {"name": name, **defaults_of(resolve(group, name))}
        return ConfigResult(
            provider=self.provider, path=f"{SCHEME}://", config=OmegaConf.create(node), header={"package": package}
        )


def options(group: str) -> list[str]:
    """Option files and registered components of a group, nested ones (``gsm8k/explorer``) too."""
    from importlib.resources import files

    roots = [folder / "conf"] if (folder := project.get()) else []
    roots += [
        Path(str(files(package))) for package in ["trinity_core.conf", *(_package(root) for _, root in conf_roots())]
    ]
    found = set(catalog(group)) if group in CONFIG_KINDS else set()
    for root in roots:
        base = root / group
        found |= {file.relative_to(base).with_suffix("").as_posix() for file in base.rglob("*.yaml")}
    return sorted(found)


def register() -> None:
    """Tell Hydra about the kernel's plugins; safe to call twice."""
    for plugin in (TrinitySearchPath, LastSource):
        Plugins.instance().register(plugin)


def _package(root: str) -> str:
    return root.removeprefix("pkg://").replace("/", ".")
