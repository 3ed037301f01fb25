"""Sweeps: words with several values to one list of words per combination, by Hydra's own grammar."""

from __future__ import annotations

from collections.abc import Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from trinity_core.config.compose import Composer
from trinity_core.errors import ConfigError


def sweep_words(composer: Composer, words: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether a ``sweep=`` option asks for several runs, and its parameters as words (those typed win)."""
    chosen = [word for word in words if word.lstrip("+").startswith(("sweep=", "hydra."))]
    if not chosen:
        return False, []
    hydra = composer.load(chosen).hydra
    params = OmegaConf.to_container(hydra.sweeper.params or {})
    assert isinstance(params, dict)
    typed = {override.key_or_group for override in composer.parse(words)}
    extra = [f"{key!s}={value}" for key, value in params.items() if key not in typed]
    return str(hydra.mode).endswith("MULTIRUN"), extra


def cells(composer: Composer, words: Sequence[str]) -> list[list[str]]:
    """One list of words per combination: ``seed=0,1 loss=ppo,sft`` gives four, the last word varying fastest."""
    parsed = composer.parse(words)
    for override in parsed:
        if override.is_sweep_override() and override.is_hydra_override():
            raise ConfigError(f"{override.input_line}: Hydra's own values cannot be swept")
    swept = {o.key_or_group + (f"@{o.package}" if o.package else "") for o in parsed if o.is_sweep_override()}
    if not swept:
        raise ConfigError("-m: no word has several values. Write them with commas: trinity run -m seed=0,1")
    (batch,) = BasicSweeper.split_arguments(_globs(composer, parsed), max_batch_size=None)
    return [list(cell) for cell in batch]


def swept_of(cell: Sequence[str], all_cells: Sequence[Sequence[str]]) -> list[str]:
    """The words of ``cell`` that not every cell has: what tells it apart."""
    shared = set.intersection(*(set(other) for other in all_cells)) if len(all_cells) > 1 else set()
    return [word for word in cell if word not in shared]


def _globs(composer: Composer, parsed: list[Override]) -> list[Override]:
    """``loss=glob(*)`` needs the loader to know the options of its group."""
    for override in parsed:
        override.config_loader = composer.loader
    return parsed
