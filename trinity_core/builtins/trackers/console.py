"""The terminal: the plan before a run, one line per step, a live line below, the summary after."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from trinity_core.builtins.trackers.words import accuracy, number, progress_line, step_line, summary_rows
from trinity_core.errors import ConfigError
from trinity_core.protocols import RunContext, Tracker


@dataclass(frozen=True)
class Console(Tracker):
    """Prints a run on standard output.

    On a terminal a live line shows phase, step, samples, tokens per second, reward so far and time left, from the first
    second on. Where the output is no terminal (a pipe, a log file) there are no colours and no control codes, and the
    live line is printed as a plain line every ``every_s`` seconds.
    """

    every_s: float = 5.0
    """Seconds between two progress lines where the output is no terminal."""
    plan: bool = True
    """Print the plan before the run."""

    def __post_init__(self) -> None:
        if not self.every_s > 0:
            raise ConfigError(f"console.every_s: {self.every_s} is no interval. Give seconds above 0")

    def open(self, run: RunContext) -> LiveConsole:
        return LiveConsole(self, sys.stdout)


class LiveConsole(Tracker):
    """One run on one stream."""

    def __init__(self, config: Console, stream: IO[str]) -> None:
        from rich.console import Console as Rich

        self.config = config
        self._tty = stream.isatty()
        # Decided by the stream alone: FORCE_COLOR in somebody's environment must not colour a log file.
        self._rich = Rich(
            file=stream,
            force_terminal=self._tty,
            force_interactive=self._tty,
            color_system="auto" if self._tty else None,
            width=None if self._tty else 100,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._live: Any = None
        self._spinner: Any = None
        self._began = self._said = time.monotonic()
        self._first_step = 0
        self._first_s: float | None = None
        """Seconds of work that earlier lives of the run had done."""
        self._last_step = 0
        self._last_s = 0.0
        """Seconds of work when the last step ended."""
        self._reward: float | None = None

    # the timeline
    def started(self, run: Mapping[str, Any]) -> None:
        self._began = time.monotonic()
        self._first_step = self._last_step = int(run.get("step", 0))
        word = "resumes" if run.get("resumed") else "starts"
        self._line(f"run {run.get('id', '')} {word}", "bold")
        if self.config.plan:
            self._table(run.get("plan", {}))
        self._said = self._began - self.config.every_s  # the first progress is shown at once

    def progress(self, state: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if not self._tty and now - self._said < self.config.every_s:
            return
        self._said = now
        line = progress_line(state, seconds=now - self._began, reward=self._reward, left=self._left(state, now))
        if not self._tty:
            self._line(line)
            return
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.table import Table

        if self._live is None:
            self._spinner = Spinner("dots")
            self._live = Live(console=self._rich, transient=True, refresh_per_second=4, redirect_stdout=False)
            self._live.start()
        row = Table.grid(padding=(0, 1))
        row.add_column()
        row.add_column(no_wrap=True, overflow="ellipsis")  # one line, however narrow the terminal
        row.add_row(self._spinner, self._text(line, "dim"))
        self._live.update(row)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._reward = metrics.get("reward/mean", self._reward)
        self._said = time.monotonic()
        self._line(step_line(step, metrics))

    def evaluated(self, step: int, taskset: str, result: Mapping[str, Any]) -> None:
        self._line(f"eval step {step:>4}  {taskset}: {accuracy(result)}", "bold cyan")

    def checkpointed(self, step: int, path: str) -> None:
        self._line(f"checkpoint of step {step} written: {path}", "dim")

    def warned(self, message: str) -> None:
        self._line(f"warning: {message}", "yellow")

    def finished(self, summary: Mapping[str, Any]) -> None:
        self._stop()
        status = str(summary.get("status", "ended"))
        self._line(f"run {status}", "bold green" if status == "finished" else "bold red")
        self._table({"summary": summary_rows(summary)})
        commands = summary.get("next") or []
        if commands:
            self._line("next", "bold")
            for command in commands:
                self._line(f"  {command}", "green")

    def close(self) -> None:
        self._stop()

    # how it is drawn
    def _left(self, state: Mapping[str, Any], now: float) -> float | None:
        """Seconds until the last step, from the mean of this life's steps; ``None`` before there is one."""
        done, steps = int(state.get("step", 0)), int(state.get("steps", 0))
        # the run's own clock stands still during evaluations
        work = float(state.get("train_seconds", now - self._began))
        if self._first_s is None:
            self._first_s = work if "train_seconds" in state else 0.0
        if done != self._last_step:
            self._last_step, self._last_s = done, work
        if not self._first_step < done < steps:
            return None
        mean = (self._last_s - self._first_s) / (done - self._first_step)
        return max(0.0, mean * (steps - done) - (work - self._last_s))

    def _line(self, line: str, style: str = "") -> None:
        # soft_wrap: a line of a log stays one line, however long
        self._rich.print(self._text(line, style), soft_wrap=True)
        self._rich.file.flush()

    def _table(self, sections: Mapping[str, Any]) -> None:
        from rich.cells import cell_len
        from rich.text import Text

        rows: list[tuple[str, str, str]] = []
        for section, content in sections.items():
            # A section is a list of (label, value); whatever else a plan holds is shown as it is.
            listed = isinstance(content, Sequence) and not isinstance(content, str)
            for index, (label, value) in enumerate(content if listed else [("", content)]):
                rows.append((section if index == 0 else "", str(label), number(value)))
        widths = [max((cell_len(row[column]) for row in rows), default=0) + 2 for column in (0, 1)]
        for section, label, value in rows:
            line = Text()
            line.append(section + " " * (widths[0] - cell_len(section)), "bold")
            line.append(label + " " * (widths[1] - cell_len(label)), "cyan")
            line.append(value)
            self._rich.print(line, soft_wrap=True)
        self._rich.file.flush()

    def _text(self, text: str, style: str = "") -> Any:
        from rich.text import Text

        return Text(text, style=style)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
