"""Words as typed to one composed tree. OmegaConf and Hydra compose; :mod:`trinity_core.config.check` judges."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.utils import create_config_search_path
from hydra.core.default_element import GroupDefault
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from packaging.version import Version

from trinity_core.config import grammar, hydra_plugin
from trinity_core.config.project import activate, find_project, replaced
from trinity_core.errors import ConfigError, TrinityError
from trinity_core.kinds import CONFIG_KINDS

SHIPPED = Path(__file__).parent.parent / "conf"
_told: set[tuple[Path, str]] = set()


def compose(words: Sequence[str], *, cwd: Path | str | None = None) -> DictConfig:
    """The tree of a run from ``words`` (``loss=ppo``, ``seed=1``, ``+reward@rewards.tag=regex``, ``~trackers.wandb``).

    Precedence: words, recipe, preset, ``run.yaml``. ``cwd`` is where the project is looked for. Needs no ``hydra.main``
    and leaves no global state. Raises :class:`ConfigError`; values are judged by ``check``.
    """
    with composer(cwd) as loader:
        return loader.compose(words)


@contextmanager
def composer(cwd: Path | str | None = None) -> Iterator[Composer]:
    """Hydra's loader over our search path; the project is found once, its folder put on ``sys.path``."""
    start = Path(cwd) if cwd is not None else Path.cwd()
    folder = find_project(start)
    activate(folder, start)
    for file in replaced(folder, SHIPPED):
        if folder is not None and (folder, file) not in _told:
            _told.add((folder, file))
            print(f"trinity: {folder / 'conf' / file} replaces trinity-core's {file}", file=sys.stderr)
    tokens = (hydra_plugin.composing.set(True), hydra_plugin.project.set(folder))
    base = version.getbase()
    try:
        version.setbase("1.3")
        hydra_plugin.register()
        yield Composer(ConfigLoaderImpl(create_config_search_path("pkg://trinity_core.conf")))
    finally:
        if isinstance(base, Version):
            version.setbase(str(base))
        hydra_plugin.project.reset(tokens[1])
        hydra_plugin.composing.reset(tokens[0])


class Composer:
    """Composes words; every failure of Hydra, OmegaConf or YAML becomes a :class:`ConfigError` with the fix."""

    def __init__(self, loader: ConfigLoaderImpl) -> None:
        self.loader = loader

    def parse(self, words: Sequence[str]) -> list[Override]:
        return grammar.parse(words)

    def compose(self, words: Sequence[str]) -> DictConfig:
        """The tree of a run; see :func:`compose`."""
        cfg = self.load(words)
        self.refuse_foreign(words)
        with open_dict(cfg):
            del cfg["hydra"]
        return cfg

    def load(self, words: Sequence[str]) -> DictConfig:
        """The composed tree, with Hydra's own node."""
        parsed = self.parse(words)
        grammar.refuse_several(parsed)
        forced = [self._normal(override) for override in parsed]
        with self._explaining(parsed):
            return self.loader.load_configuration("run", forced, run_mode=RunMode.RUN, from_shell=False)

    @contextmanager
    def _explaining(self, parsed: Sequence[Override]) -> Iterator[None]:
        """What Hydra, OmegaConf and YAML raise, as a :class:`ConfigError`."""
        try:
            yield
        except TrinityError:
            raise
        except AssertionError:
            raise ConfigError(self._explain_order(parsed)) from None
        except yaml.YAMLError as error:
            raise ConfigError(f"an option file is no YAML: {_first_lines(error, 6)}") from None
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise ConfigError(self._explain(error)) from None

    def _normal(self, override: Override) -> str:
        """``a.b=c`` as ``++a.b=c``: whether ``a.b`` exists is for ``check`` to judge, which knows every option; and
        ``group=null``, which Hydra does not take, as ``~group``."""
        word = override.input_line or ""
        key = override.key_or_group
        if key == "recipe" and word[:1] == "+" and override.package is None:
            raise ConfigError(f"{word}: a run has one recipe: recipe={override.get_value_string()} (no +)")
        if word == f"{key}=null" and self.loader.repository.group_exists(key):
            return f"~{key}"
        if self.loader.repository.group_exists(key) or override.package is not None or key.startswith("hydra."):
            return word
        if re.fullmatch(rf"(?:{_component_nodes()})\.name", key) and not override.is_delete():
            group, node = group_of(key.removesuffix(".name"))
            line = (
                f"{group}={override.get_value_string()}"
                if node == group
                else f"{group}@{node}={override.get_value_string()}"
            )
            raise ConfigError(
                f"{key}: a component is selected as an option, so that no value of another stays behind: {line}"
            )
        return word if word[:1] in "+~" else f"++{word}"

    def _explain(self, error: Exception) -> str:
        cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
        text = _first_lines(cause, 6).replace("'++", "'")
        if found := re.search(r"Could not override '([^']+)'\.?\s*(?:No match in the defaults list)", text):
            return f"{found[1]}: no such group. Groups: {', '.join([*CONFIG_KINDS, *hydra_plugin.GROUPS])}. To fill a new slot: +{found[1]}=…"
        if found := re.search(r"Multiple values for (\S+?)\.|(\S+) appears more than once in the final", text):
            group = found[1] or found[2]
            return f"{group}: an option is selected already. Replace it with {group}=NAME (no +)"
        if found := re.search(r"Could not delete from config\. '([^']+)' does not exist", text):
            return f"~{found[1]}: there is nothing at {found[1]} to drop"
        if isinstance(cause, OmegaConfBaseException) and cause.full_key and cause.full_key not in text:
            text = f"{cause.full_key}: {text}"
        return text

    def _explain_order(self, parsed: Sequence[Override]) -> str:
        """Hydra answers an addition after a list override with a bare ``AssertionError``."""
        recipes = [o.get_value_string() for o in parsed if o.key_or_group in ("recipe", "algorithm")]
        return (
            f"overrides last, in recipe {', '.join(recipes) or '(which one Hydra does not say)'}: in its defaults list first _self_, "
            "then additions (/taskset@eval.tasksets.x: numbers), then every `override /group: …`"
        )

    # --- values that a recipe set for a part which the words replaced -------------------------------------------------

    def refuse_foreign(self, words: Sequence[str]) -> None:
        """Refuse values that a recipe sets for one option of a part, where the words selected another."""
        parsed = self.parse([self._normal(override) for override in self.parse(words)])
        groups = [o for o in parsed if self._is_group(o)]
        typed = [o for o in groups if o.key_or_group in CONFIG_KINDS or o.key_or_group in ("model", "critic")]
        if not typed or not any(o.key_or_group == "recipe" for o in groups):
            return
        touched = {o.key_or_group for o in parsed if o not in groups}
        for recipe, body, chosen in self.recipes(groups):
            for override in typed:
                group, package = override.key_or_group, override.package
                key = f"{group}@{package}" if package else group
                new, old = override.value(), chosen.get(key) or self._default(group)
                node = package or (CONFIG_KINDS[group].node if group in CONFIG_KINDS else group)
                values = OmegaConf.select(body, node)
                if (
                    old == new
                    or not isinstance(new, str)
                    or not isinstance(values, DictConfig)
                    or _is_plural(group, node)
                ):
                    continue
                slot_keys = CONFIG_KINDS[group].slot_keys if group in CONFIG_KINDS else ()
                foreign = [n for n in map(str, values) if f"{node}.{n}" not in touched and n not in slot_keys]
                if foreign:
                    drop = " ".join(f"~{node}.{name}" for name in foreign)
                    raise ConfigError(
                        f"{node}: recipe {recipe} sets {', '.join(foreign)} for {old!r}, but {key}={new} was chosen. "
                        f"Drop it with {drop} or choose another recipe"
                    )

    def _is_group(self, override: Override) -> bool:
        return override.package is not None or bool(self.loader.repository.group_exists(override.key_or_group))

    def recipes(self, groups: Sequence[Override]) -> list[tuple[str, DictConfig, dict[str, Any]]]:
        """(name, body, what it selects) of every recipe that ``groups`` bring in; selections of included recipes count."""
        repo = CachingConfigRepository(self.loader.repository)
        with self._explaining(groups):
            listed = create_defaults_list(
                repo=repo, config_name="run", overrides_list=groups, prepend_hydra=True, skip_missing=False
            )
        paths = [path for d in listed.defaults if (path := d.config_path or "").startswith("recipe/")]
        loaded = [(path, found) for path in paths if (found := repo.load_config(path)) is not None]
        chosen: dict[str, Any] = {}
        for _, found in loaded:
            for default in found.defaults_list or []:
                if isinstance(default, GroupDefault) and default.group:
                    group = default.group.lstrip("/")
                    chosen[f"{group}@{default.package}" if default.package else group] = default.value
        return [(path.removeprefix("recipe/"), DictConfig(found.config), chosen) for path, found in loaded]

    def _default(self, group: str) -> Any:
        """What ``run.yaml`` selects."""
        run = self.loader.repository.load_config("run")
        listed = (run.defaults_list if run else None) or []
        return next((d.value for d in listed if isinstance(d, GroupDefault) and d.group == group), None)


def _is_plural(group: str, node: str) -> bool:
    """``taskset=[…]``: values left in a slot that nothing fills are found by ``check``."""
    return group in CONFIG_KINDS and node == CONFIG_KINDS[group].plural


def _component_nodes() -> str:
    """A regular expression over the nodes that hold components."""
    singular = [kind.node for kind in CONFIG_KINDS.values() if not kind.plural]
    plural = [rf"{kind.plural}\.[^.]+" for kind in CONFIG_KINDS.values() if kind.plural]
    return "|".join([*singular, *plural, r"eval\.tasksets\.[^.]+", r"models\.[^.]+\.engine"])


def group_of(node: str) -> tuple[str, str]:
    """(group, node) of a component's node: ``eval.tasksets.x`` -> ``taskset``."""
    if node.startswith("models."):
        return "engine", node
    last = node.removeprefix("eval.").partition(".")[0]
    return next(name for name, kind in CONFIG_KINDS.items() if last == kind.node), node


def _first_lines(error: BaseException, n: int = 3) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "\n  ".join(line for line in lines[:n] if not line.startswith(("full_key:", "object_type=", "See https")))
