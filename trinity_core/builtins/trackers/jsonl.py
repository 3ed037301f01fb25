"""``metrics.jsonl``: every event of a run, one JSON object per line."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trinity_core.errors import ConfigError, RunError
from trinity_core.protocols import RunContext, Tracker

SURVIVES = ("started", "finished")
"""Events that say what happened to the run itself: a resume keeps them all."""


@dataclass(frozen=True)
class Jsonl(Tracker):
    """One JSON object per line: ``{"event": "step", "step": 3, "time": …, "reward/mean": …}``.

    Events: *started, step, evaluated, checkpointed, warned, finished*. Every line is flushed when it is written. A resume
    at step k drops the lines of later steps, which are about to happen again, and a line that a kill cut in half: no step
    stands in the file twice. A value that is NaN or infinite is written as ``null`` and named in ``"nonfinite"``.
    """

    file: str = "metrics.jsonl"
    """Name of the file in the run folder."""

    def __post_init__(self) -> None:
        if not self.file or Path(self.file).name != self.file:
            raise ConfigError(f"jsonl.file: {self.file!r} is not a bare file name. The file lies in the run folder")

    def open(self, run: RunContext) -> LiveJsonl:
        return LiveJsonl(run, run.dir / self.file)


class LiveJsonl(Tracker):
    """The open file of one run."""

    def __init__(self, run: RunContext, path: Path) -> None:
        self.path = path
        self._run = run
        self._file: IO[str] | None = None

    def started(self, run: Mapping[str, Any]) -> None:
        step = int(run.get("step", self._run.step))
        if run.get("resumed") and self.path.exists():
            self._forget_after(step)
        self._write("started", {"step": step, **{key: run[key] for key in ("id", "mode", "resumed") if key in run}})

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._write("step", {"step": step, **metrics})

    def evaluated(self, step: int, taskset: str, result: Mapping[str, Any]) -> None:
        self._write("evaluated", {"step": step, "taskset": taskset, **result})

    def checkpointed(self, step: int, path: str) -> None:
        self._write("checkpointed", {"step": step, "path": path})

    def warned(self, message: str) -> None:
        self._write("warned", {"step": self._run.step, "message": message})

    def finished(self, summary: Mapping[str, Any]) -> None:
        self._write("finished", summary)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, event: str, values: Mapping[str, Any]) -> None:
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8")
        nonfinite: list[str] = []
        line = {"event": event, "time": round(time.time(), 3), **_plain(values, "", nonfinite)}
        if nonfinite:
            line["nonfinite"] = nonfinite
        self._file.write(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n")
        self._file.flush()

    def _forget_after(self, step: int) -> None:
        """Rewrite the file without what did not survive: aside, fsync, rename."""
        lines = self.path.read_text(encoding="utf-8").split("\n")
        cut = lines.pop()  # "" where the last line was written whole
        kept = []
        for number, line in enumerate(lines, 1):
            try:
                event = json.loads(line)
                survives = event["event"] in SURVIVES or event.get("step", 0) <= step
            except (ValueError, KeyError, TypeError) as error:
                raise RunError(
                    f"{self.path}:{number}: not a line this tracker wrote ({error}). Move the file away and resume again"
                ) from error
            if survives:
                kept.append(line)
        if len(kept) == len(lines) and not cut:
            return
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        with aside.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self.path)


def _plain(value: Any, path: str, nonfinite: list[str]) -> Any:
    """``value`` as JSON can say it; the paths of numbers that it cannot are added to ``nonfinite``."""
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):  # numpy scalars
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{path}.{key}" if path else str(key), nonfinite) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(item, f"{path}[{index}]", nonfinite) for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        nonfinite.append(path)
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
