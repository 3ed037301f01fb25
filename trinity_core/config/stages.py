"""A run of stages: words to one checked config for each stage, all of them before the first starts.

``stages`` names recipes. The words of a stage are its recipe (on top of the recipe that was typed, if one was), then the
words typed for all, then those of ``over`` for it alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from trinity_core.config.build import build
from trinity_core.config.check import check
from trinity_core.config.compose import Composer
from trinity_core.config.schema import RunConfig
from trinity_core.errors import ConfigError, TrinityError
from trinity_core.plugins import did_you_mean

OF_THE_WHOLE = ("recipe", "stages", "over", "out", "sweep")
"""Keys that make the whole, and are no words of a stage."""
NOT_TYPED = {
    "resume": "a run of stages goes on by itself: trinity run resume=ITS_FOLDER, with no other words",
    "join": "an explorer joins one run: drop stages, or join=",
}


@dataclass(frozen=True)
class Stage:
    """One of several runs, each of which starts from the weights of the one before."""

    number: int
    """From 1."""
    name: str
    """Its recipe."""
    words: tuple[str, ...]
    """What would be typed to run it alone."""
    config: RunConfig
    """Checked, with the model path of the first stage: the weights it starts from do not exist yet."""
    composed: DictConfig = field(repr=False, compare=False)

    @property
    def folder(self) -> str:
        """Its folder in that of the whole: ``2-grpo``."""
        return f"{self.number}-{self.name.rpartition('/')[2]}"

    def __str__(self) -> str:
        return f"stage {self.number} ({self.name})"


@dataclass(frozen=True)
class _Whole:
    """The two root keys, as they are checked."""

    stages: tuple[str, ...] = ()
    over: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def plan_stages(composer: Composer, words: Sequence[str]) -> list[Stage]:
    """Every stage that ``words`` ask for, composed and checked; empty where they ask for one run.

    ``out=`` is for who runs them. Raises :class:`ConfigError` that names the first bad stage.
    """
    parsed = composer.parse(words)
    if not _asked(composer, parsed):
        return []
    mine = [o for o in parsed if _key(o) in ("recipe", "stages", "over")]
    found = composer.load([str(o.input_line) for o in mine])
    whole = _whole(found)
    if not whole.stages:
        return []
    for override in parsed:
        if why := NOT_TYPED.get(_key(override)):
            raise ConfigError(f"{override.input_line}: {why}")
    outer = [str(o.input_line) for o in mine if _key(o) == "recipe"]
    shared = [str(o.input_line) for o in parsed if _key(o) not in OF_THE_WHOLE]
    alone = _words_alone(composer, whole)
    line = _Line(composer, outer, shared, alone)
    stages = [line.stage(number, name, others=whole.stages) for number, name in enumerate(whole.stages, 1)]
    _refuse_differences(stages)
    return stages


def quoted(key: str, value: str) -> str:
    """``key=value`` as one word of Hydra's grammar, whatever the value holds."""
    if re.fullmatch(r"[\w./-]+", value):
        return f"{key}={value}"
    # a quote is escaped, and so is each backslash before one or before the end
    escaped = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value)
    return f"{key}='{escaped}'"


# --- reading ----------------------------------------------------------------------------------------------------------


def _asked(composer: Composer, parsed: Sequence[Override]) -> bool:
    """Whether somebody typed stages, or a recipe that takes part lists some."""
    if any(_key(o) == "stages" for o in parsed):
        return True
    recipes = [str(o.input_line) for o in parsed if _key(o) == "recipe"]
    return bool(recipes) and _lists_stages(composer, recipes)


def _whole(found: DictConfig) -> _Whole:
    """``stages`` and ``over`` as composed; a number may stand for a name in ``over``."""
    values: dict[str, Any] = {}
    for key in ("stages", "over"):
        node = found.get(key)
        values[key] = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    if isinstance(values["over"], dict):
        values["over"] = {str(key): value for key, value in values["over"].items()}
    return build(_Whole, values, "", "a run")


def _words_alone(composer: Composer, whole: _Whole) -> dict[int, tuple[str, ...]]:
    """``over`` by number of the stage."""
    names = list(whole.stages)
    found: dict[int, tuple[str, ...]] = {}
    for key, words in whole.over.items():
        numbers = [number for number, name in enumerate(names, 1) if key in (name, str(number))]
        if not numbers:
            raise ConfigError(f"over.{key}: there is no such stage.{did_you_mean(key, names)} Stages: {_listed(names)}")
        if len(numbers) > 1:
            ways = " or ".join(map(str, numbers))
            raise ConfigError(f"over.{key}: {len(numbers)} stages are called so. Say which by its number: {ways}")
        for override in composer.parse(words):
            if _key(override) in (*OF_THE_WHOLE, *NOT_TYPED):
                raise ConfigError(f"over.{key}: {override.input_line} belongs to the whole run, not to one stage")
        found[numbers[0]] = (*found.get(numbers[0], ()), *words)
    return found


def _key(override: Override) -> str:
    """The root key a word sets: ``over`` for ``over.2=[…]``."""
    return str(override.key_or_group).partition(".")[0]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{number}: {name}" for number, name in enumerate(names, 1))


# --- one stage --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Line:
    """The words of the whole, as each stage takes them."""

    composer: Composer
    outer: Sequence[str]
    """What was typed of a recipe."""
    shared: Sequence[str]
    alone: Mapping[int, Sequence[str]]

    def stage(self, number: int, name: str, *, others: Sequence[str]) -> Stage:
        who = f"stage {number} ({name})"
        try:
            return self._stage(number, name)
        except TrinityError as error:
            hint = self._hint(str(error), number, others)
            raise type(error)(f"{who}: {error}{hint}\nNothing was started") from error

    def _stage(self, number: int, name: str) -> Stage:
        if _lists_stages(self.composer, [f"recipe={name}"]):
            raise ConfigError("lists stages itself, and a stage is one run. List those stages instead")
        recipes = [f"recipe={name}"]
        if self.outer:  # the stage's recipe on top; what the other one says of stages is no business of one of them
            recipes = [*self.outer, f"+recipe@_global_={name}", "~stages", "~over"]
        words = [*recipes, *self.shared, *self.alone.get(number, ())]
        composed = self.composer.compose(words)
        config = check(composed)
        refuse_alone(config)
        return Stage(number, name, tuple(words), config, composed)

    def _hint(self, said: str, number: int, others: Sequence[str]) -> str:
        """Where a word that was typed for all suits another stage: how to type it for that one."""
        word = next((word for word in self.shared if _path(word) in said), None)
        for other, name in enumerate(others, 1):
            if word is None or other == number:
                continue
            try:
                self._stage(other, name)
            except TrinityError:
                continue
            return f"\n{word} was typed for every stage. For {name} alone: 'over={{{name}: [\"{word}\"]}}'"
        return ""


def _lists_stages(composer: Composer, words: Sequence[str]) -> bool:
    """Whether a recipe that takes part lists stages."""
    return any("stages" in body for _, body, _ in composer.recipes(composer.parse(words)))


def _path(word: str) -> str:
    """``optim.lr`` of ``optim.lr=1``."""
    return word.lstrip("+~").partition("=")[0]


def refuse_alone(config: RunConfig) -> None:
    """What a run may be, and a stage may not."""
    if config.mode != "both":
        raise ConfigError(
            f"mode={config.mode}: stages follow each other in one process. Write mode=both, or run it without stages"
        )
    if config.steps < 1:
        raise ConfigError(f"steps={config.steps} trains nothing, so it hands nothing on. Write steps=1 or more")
    if config.out is not None:
        raise ConfigError("out stands in a recipe. Type it: out=DIR is the folder of all stages")


def _refuse_differences(stages: Sequence[Stage]) -> None:
    """What all stages share, because weights and process go from one to the next."""
    first = stages[0]
    for stage in stages[1:]:
        mine, theirs = stage.config.model.path, first.config.model.path
        if mine != theirs:
            raise ConfigError(
                f"{stage}: model.path is {mine!r}, and {theirs!r} in {first}. A later stage starts from the weights of the one "
                "before: type one model for all, model=NAME. Nothing was started"
            )
        if stage.config.threads != first.config.threads:
            raise ConfigError(
                f"{stage}: threads is {stage.config.threads}, and {first.config.threads} in {first}. One process runs them all: "
                "type threads=N for all. Nothing was started"
            )
