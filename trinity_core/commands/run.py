"""``trinity run``: words to one checked config and one run, or with ``-m`` to one run per combination."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trinity_core.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

USAGE = """usage: trinity run [WORDS] [-m] [--cfg job]

words:
  recipe=quickstart             a complete run by name
  loss=ppo                      another option of a group; an import string too: loss=my_file:Mine
  'reward=[exact,my_file:Mine]' several, for groups that may have many; the second one's slot: rewards.mine
  +reward@rewards.tag=exact     one more slot of a name of your own (the same reward a second time)
  optim.lr=1e-6                 another value;  ~trackers.console drops a part
  'model.lora={rank: 16}'       words with braces, brackets or spaces are quoted
  'stages=[stage/sft,stage/grpo]'  recipes one after the other, each from the weights of the one before
  'over={stage/sft: ["steps=50"]}' words for one stage alone
  out=DIR  resume=DIR  join=DIR
options:
  -m, --multirun               every combination of the words with several values: seed=0,1 algorithm.group_size=4,8
  --cfg job                    print the composed, checked config and stop
  -h, --help                   this text, groups and options
"""


def main(argv: Sequence[str]) -> int:
    words = [word for word in argv if word not in ("-m", "--multirun")]
    multirun = len(words) != len(argv)
    if any(word in ("-h", "--help") for word in words):
        print(USAGE + _groups(), end="")
        return 0
    words, printing = _take_cfg(words)
    if any(word.startswith("-") for word in words):
        from trinity_core.config import grammar

        grammar.parse(words)  # says what to write instead
    with contextlib.redirect_stdout(sys.stderr):  # what a module prints while it is imported is no output of ours
        from trinity_core.plugins import warn_broken

        warn_broken()
        if multirun or asks_for_several(words):
            job = _several(words, printing)
        else:
            from trinity_core.commands.stages import job_of

            job = job_of(words, printing) or _one(words, printing)
    return job()


def _several(words: Sequence[str], printing: bool) -> Callable[[], int]:
    if printing:
        raise ConfigError("--cfg job shows one config: give every word one value")
    from trinity_core.commands.sweep import plan, sweep

    return partial(sweep, plan(words))


def _one(words: Sequence[str], printing: bool) -> Callable[[], int]:
    """One run, composed and checked."""
    from trinity_core.config.check import check

    words = _expanded(words)
    cfg = _compose(words)
    config = check(cfg)

    def show() -> int:
        from omegaconf import OmegaConf

        print(OmegaConf.to_yaml(cfg), end="")
        return 0

    def run() -> int:
        from trinity_core.run import start

        summary = start(config, words, out=Path(config.out) if config.out else None)
        return 0 if summary.get("status") == "finished" else 1

    return show if printing else run


def _compose(words: Sequence[str]) -> DictConfig:
    from trinity_core.config.compose import compose

    return compose(words)


def _expanded(words: Sequence[str]) -> list[str]:
    """The words typed then and now, where ``resume=`` or ``join=`` names an earlier run."""
    from trinity_core.run.resume import expand

    return expand(words)


def asks_for_several(words: Sequence[str]) -> bool:
    """Whether a sweep or its mode was typed, without ``-m``."""
    if not any(word.lstrip("+").startswith(("sweep=", "hydra.mode=")) for word in words):
        return False
    from trinity_core.config.cells import sweep_words
    from trinity_core.config.compose import composer

    with composer() as loader:
        return sweep_words(loader, words)[0]


def _take_cfg(words: list[str]) -> tuple[list[str], bool]:
    """``--cfg job`` or ``--cfg=job`` out of the words."""
    rest, found = [], False
    words = list(words)
    while words:
        word = words.pop(0)
        if word in ("--cfg", "-c"):
            what = words.pop(0) if words else "nothing"
        elif word.startswith("--cfg="):
            what = word.partition("=")[2]
        else:
            rest.append(word)
            continue
        if what != "job":
            raise ConfigError(f"--cfg {what}: only `--cfg job` exists: the config of this run")
        found = True
    return rest, found


def _groups() -> str:
    """Every group with its options."""
    from trinity_core.config.compose import composer
    from trinity_core.config.hydra_plugin import GROUPS, options
    from trinity_core.kinds import CONFIG_KINDS

    with composer():
        lines = [f"  {group:16} {', '.join(options(group)) or '-'}" for group in [*GROUPS, *CONFIG_KINDS]]
    return "\n".join(
        [
            "groups (group=option):",
            *lines,
            "",
            "values: trinity run --cfg job; a component's own: trinity plugins KIND NAME; what each other key means: docs/keys.md",
            "",
        ]
    )
