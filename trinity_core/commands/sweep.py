"""``trinity run -m``: every combination composed and checked before the first starts, then one after the other."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity_core.config.cells import cells, sweep_words, swept_of
from trinity_core.config.check import check
from trinity_core.config.compose import composer
from trinity_core.config.schema import RunConfig
from trinity_core.config.stages import Stage, plan_stages
from trinity_core.errors import ConfigError, TrinityError

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass
class Cell:
    """One combination."""

    number: int
    words: list[str]
    shown: str
    """The words that tell it apart."""
    config: RunConfig
    """Of its first stage, where it has stages."""
    folder: Path
    stages: Sequence[Stage] = ()
    status: str = "waiting"
    metric: str = ""


def sweep(planned: Sequence[Cell]) -> int:
    """Run every cell in its own folder ``<out>/<n>``. Exit code 0 only if all finished."""
    print(f"{len(planned)} runs in {planned[0].folder.parent}:", file=sys.stderr)
    for cell in planned:
        print(f"  {cell.number}: {cell.shown}", file=sys.stderr)
    planned[0].folder.parent.mkdir(parents=True, exist_ok=True)
    for cell in planned:
        print(f"\n--- {cell.number}: {cell.shown}", file=sys.stderr)
        _run(cell)
    _table(planned)
    return 0 if all(cell.status == "finished" for cell in planned) else 1


def plan(words: Sequence[str]) -> list[Cell]:
    """Compose and check every combination; the first bad one is named and nothing has run."""
    with composer() as loader:
        words = [*words, *sweep_words(loader, words)[1]]
        out, words = _take_out(words)
        combinations = cells(loader, words)
        planned: list[Cell] = []
        for number, combination in enumerate(combinations):
            shown = " ".join(swept_of(combination, combinations))
            try:
                if stages := plan_stages(loader, combination):
                    config = stages[0].config
                else:
                    composed = loader.compose(combination)
                    combination = [*combination, *_shorter(composed, combination, first=not planned)]
                    config = check(composed)
            except TrinityError as error:
                end = "" if "Nothing was started" in str(error) else "\nNothing was started"
                raise type(error)(f"cell {number} ({shown}): {error}{end}") from error
            for key in ("resume", "join"):
                if getattr(config, key) is not None:
                    raise ConfigError(f"{key}: a sweep starts new runs. Drop {key}= or -m")
            planned.append(Cell(number, combination, shown, config, out / str(number), stages))
        for cell in planned:
            if cell.folder.exists() and any(cell.folder.iterdir()):
                raise ConfigError(f"out={out}: {cell.folder} exists and is not empty. Name a new folder")
        return planned


def _shorter(composed: DictConfig, words: Sequence[str], *, first: bool) -> list[str]:
    """The terminal shows the plan of the first cell alone: what tells another apart stands above it. Sets it and returns
    the word that says so."""
    from omegaconf import OmegaConf

    trackers = OmegaConf.select(composed, "trackers") or {}
    extra = []
    for slot, node in () if first else trackers.items():
        path = f"trackers.{slot}.plan"
        if node is not None and node.get("plan") is True and not any(path in word for word in words):
            OmegaConf.update(composed, path, False)
            extra.append(f"{path}=false")
    return extra


def _take_out(words: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder of the sweep: ``out=DIR``, else ``runs/sweep-<date>-<time>``."""
    named = [word.partition("=")[2] for word in words if word.lstrip("+").startswith("out=")]
    rest = [word for word in words if not word.lstrip("+").startswith("out=")]
    stamp = time.strftime("%Y-%m-%d-%H-%M-%S")
    folder = Path(named[-1]) if named else Path("runs") / f"sweep-{stamp}"
    suffix = 0
    while not named and folder.exists():
        suffix += 1
        folder = Path("runs") / f"sweep-{stamp}-{suffix}"
    return folder, rest


def _run(cell: Cell) -> None:
    """One run; whatever ends it is kept in its row and the next one starts."""
    from trinity_core.run import start
    from trinity_core.run.stages import StagedRun

    try:
        if cell.stages:
            staged = StagedRun.new(cell.stages, cell.words, out=cell.folder)
            summary = staged.run(partial(print, "---", file=sys.stderr))
        else:
            summary = start(cell.config, cell.words, out=cell.folder)
        gc.collect()  # parts know each other: without this a model stays in memory beside the next one
    except KeyboardInterrupt:
        raise
    except Exception as error:
        if os.environ.get("TRINITY_DEBUG") == "1":
            raise
        if isinstance(error, TrinityError) and error.exit_code > 128:
            raise  # Ctrl-C stops the sweep, not one cell
        cell.status, cell.metric = "failed", " ".join(str(error).split())[:80]
        print(f"trinity run: cell {cell.number} ({cell.shown}): {error}", file=sys.stderr)
        return
    cell.status = str(summary.get("status", "?"))
    cell.metric = _metric(summary)


def _metric(summary: dict[str, Any]) -> str:
    """Accuracy after training by taskset where there was an evaluation, else the reward of the last step."""
    after = summary.get("eval_after") or {}
    rows = after.items() if "accuracy" not in after else [("", after)]
    found = [(slot, row["accuracy"]) for slot, row in rows if isinstance(row, dict) and "accuracy" in row]
    if not found and summary.get("bench"):
        found = [(row["taskset"], row["accuracy"]) for row in summary["bench"]]
    shown = [f"{slot} {'none' if value is None else f'{value:.3f}'}".strip() for slot, value in found]
    if not shown and summary.get("reward") is not None:
        shown = [f"reward {round(summary['reward'], 3) + 0.0:.3f}"]
    return ", ".join(shown) or f"{summary.get('steps', '?')} steps"


def _table(planned: Sequence[Cell]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("cell", "words", "status", "result")
    table.add_column("folder", overflow="fold")
    for cell in planned:
        table.add_row(str(cell.number), cell.shown, cell.status, cell.metric, str(cell.folder))
    # a file or a pipe has no width to keep to: one line a cell, nothing cut
    Console(width=None if sys.stdout.isatty() else 100_000).print(table)
