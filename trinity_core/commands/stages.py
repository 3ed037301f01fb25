"""``trinity run`` with stages: all of them composed and checked, then one after the other, a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity_core.errors import ConfigError

if TYPE_CHECKING:
    from trinity_core.config.stages import Stage
    from trinity_core.run.stages import StagedRun


def job_of(words: Sequence[str], printing: bool) -> Callable[[], int] | None:
    """What ``words`` ask for, if they ask for stages: new ones, or the folder of some that go on."""
    from trinity_core.config.compose import composer
    from trinity_core.config.stages import plan_stages
    from trinity_core.run.resume import typed
    from trinity_core.run.stages import FILE, StagedRun

    now = typed(words)
    if now.get("resume") and (Path(now["resume"]) / FILE).is_file():
        if printing:
            raise ConfigError("--cfg job: these stages have begun, and the folder of each has its config.yaml")
        again = StagedRun.again(Path(now["resume"]), words)
        return lambda: follow(again)
    with composer() as loader:
        stages = plan_stages(loader, words)
    if not stages:
        return None
    if printing:
        return lambda: show(stages)
    out = None if now.get("out") in (None, "", "null") else Path(now["out"])
    return lambda: follow(StagedRun.new(stages, words, out=out))


def follow(staged: StagedRun) -> int:
    """Run the stages and print what became of each."""
    try:
        staged.run(lambda line: print(f"\n--- {line}", file=sys.stderr))
    finally:
        table(staged.rows())
    return 0


def show(stages: Sequence[Stage]) -> int:
    """The config of each stage, one YAML document after the other."""
    from omegaconf import OmegaConf

    for stage in stages:
        later = stage.number > 1
        print("---\n" * later + f"# {stage}" + "; model.path: the weights of the stage before" * later)
        print(OmegaConf.to_yaml(stage.composed), end="")
    return 0


def table(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table("stage", "recipe", "status", "steps", "before", "after")
    shown.add_column("folder", overflow="fold")
    for row in rows:
        before, after = (_accuracy(row[key]) for key in ("eval_before", "eval_after"))
        steps = "" if row["steps"] is None else str(row["steps"])
        shown.add_row(str(row["number"]), row["name"], row["status"], steps, before, after, row["dir"])
    Console(width=None if sys.stdout.isatty() else 100_000).print(shown)


def _accuracy(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    return "none" if found["accuracy"] is None else f"{found['accuracy']:.3f}"
