"""``trinity plan``: what a run will do, take and need, before it starts. The words are those of ``trinity run``."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity_core.errors import ConfigError

if TYPE_CHECKING:
    from trinity_core.config.schema import RunConfig

USAGE = """usage: trinity plan [WORDS] [--dry] [--json] [-m]

What a run of these words will do, before it starts: the plan that it prints, what each key that sizes something means in it,
seconds and peak memory. Words are those of `trinity run`.

A few tasks are played and trained for real, on the run's own model, engine, environment and rewards, in a folder that is
removed afterwards: out= stays as it is, and nothing that was learned is kept. What a service charges for, it charges for.

options:
  --dry                        open no model and play nothing: only what can be counted
  --json                       one JSON object for each run, on one line
  -m, --multirun               every combination of the words with several values
  -h, --help                   this text
"""


def main(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        print(USAGE, end="")
        return 0
    options = ("--dry", "--json", "-m", "--multirun")
    words = [word for word in argv if word not in options]
    if any(word.startswith("-") for word in words):
        from trinity_core.config import grammar

        grammar.parse(words)  # says what to write instead
    with contextlib.redirect_stdout(sys.stderr):  # what a module prints while it is imported is no output of ours
        from trinity_core.plugins import warn_broken

        warn_broken()
        runs = planned(words, several="-m" in argv or "--multirun" in argv)
    for title, config in runs:
        show(title, config, dry="--dry" in argv, as_json="--json" in argv)
        gc.collect()  # parts know each other: without this a model stays in memory beside the next one
    return 0


def planned(words: Sequence[str], *, several: bool) -> list[tuple[str, RunConfig]]:
    """Every run that ``words`` ask for, composed and checked as ``trinity run`` does, under what tells it apart."""
    from trinity_core.commands.run import asks_for_several

    if several or asks_for_several(words):
        from trinity_core.commands.sweep import plan

        cells = plan(words)
        return [run for cell in cells for run in _of_cell(cell)]
    from trinity_core.config.check import check
    from trinity_core.config.compose import compose, composer
    from trinity_core.config.stages import plan_stages
    from trinity_core.run.folder import refuse_used
    from trinity_core.run.resume import compare, expand, typed
    from trinity_core.run.stages import FILE

    now = typed(words)
    if now.get("resume") and (Path(now["resume"]) / FILE).is_file():
        raise ConfigError(
            f"resume={now['resume']}: a run of stages. Plan one of them: trinity plan resume={now['resume']}/N-NAME"
        )
    with composer() as loader:
        stages = plan_stages(loader, words)
    if stages:
        if now.get("out") not in (None, "", "null"):
            refuse_used(Path(now["out"]))
        return [(str(stage), stage.config) for stage in stages]
    words = expand(words)
    config = check(compose(words))
    if config.join:
        raise ConfigError(
            f"join={config.join}: a plan is of a whole run. Plan the one that is joined: trinity plan resume={config.join}"
        )
    if config.resume:
        compare(config, Path(config.resume), words)
    elif config.out:
        refuse_used(Path(config.out))
    return [("", config)]


def _of_cell(cell: Any) -> list[tuple[str, RunConfig]]:
    title = f"{cell.number}: {cell.shown}"
    if cell.stages:
        return [(f"{title}, {stage}", stage.config) for stage in cell.stages]
    return [(title, cell.config)]


def show(title: str, config: RunConfig, *, dry: bool, as_json: bool) -> None:
    """Estimate one run and print it; of one that has nothing left to do, that alone."""
    from trinity_core.commands.planned import sections
    from trinity_core.run.estimate import dry as count
    from trinity_core.run.estimate import estimate
    from trinity_core.run.estimate_scratch import nothing_left

    folder = config.resume or config.out or "runs/<date>/<time>"
    nothing = nothing_left(config)
    if dry or nothing:
        found = count(config, folder=folder)
    else:
        with contextlib.redirect_stdout(sys.stderr):
            found = estimate(config, _say, folder=folder)
    if as_json:
        plain = {name: getattr(found, name) for name in ("counted", "seconds", "memory_mb", "gpu_mb", "measured")}
        keys = {key: {"value": value, "means": means} for key, value, means in found.keys}
        print(
            json.dumps(
                {"run": title, **plain, "keys": keys, "plan": {k: dict(v) for k, v in found.plan.items()}}, default=str
            )
        )
        if nothing:
            _say(nothing)
        return
    if title:
        print(f"--- {title}")
    table(sections(config, found, dry=dry, nothing=nothing))


def _say(what: str) -> None:
    print(f"plan: {what}", file=sys.stderr, flush=True)


def table(sections: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
    """Sections of (label, text), in columns."""
    rows = [
        (section if not n else "", label, text) for section, lines in sections for n, (label, text) in enumerate(lines)
    ]
    first, second = (max((len(row[column]) for row in rows), default=0) + 2 for column in (0, 1))
    for section, label, text in rows:
        print(f"{section:{first}}{label:{second}}{text}".rstrip())
