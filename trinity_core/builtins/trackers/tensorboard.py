"""TensorBoard event files, without torch."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trinity_core.errors import PluginLoadError
from trinity_core.protocols import RunContext, Tracker


@dataclass(frozen=True)
class TensorBoard(Tracker):
    """Scalars in event files under the run folder: ``tensorboard --logdir RUN``.

    Metrics of a step are at ``<name>``, of an evaluation at ``eval/<taskset>/<name>``, each at its own step. A resume at
    step k tells TensorBoard to forget what an earlier life wrote after k. Needs ``pip install 'trinity-core[tensorboard]'``.
    """

    folder: str = "tensorboard"
    """Folder of the event files, in the run folder."""

    def open(self, run: RunContext) -> LiveTensorBoard:
        try:
            proto = importlib.import_module("tensorboard.compat.proto.event_pb2")
            writer = importlib.import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter
        except ImportError as error:
            raise PluginLoadError(
                f"tracker tensorboard needs the tensorboard library ({error}). pip install 'trinity-core[tensorboard]'"
            ) from error
        return LiveTensorBoard(run, str(run.dir / self.folder), writer, proto)


class LiveTensorBoard(Tracker):
    """The event file of one life of a run."""

    def __init__(self, run: RunContext, folder: str, writer: Any, proto: Any) -> None:
        self._run = run
        self._folder = folder
        self._make = writer
        self._proto = proto
        self._writer: Any = None

    def started(self, run: Mapping[str, Any]) -> None:
        self._writer = self._make(self._folder)
        if run.get("resumed"):
            # Readers drop what earlier files say about this step and later ones.
            step = int(run.get("step", self._run.step)) + 1
            event = self._proto.Event(wall_time=time.time(), step=step)
            event.session_log.status = self._proto.SessionLog.START
            self._writer.add_event(event)
            self._writer.flush()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._scalars(step, metrics)

    def evaluated(self, step: int, taskset: str, result: Mapping[str, Any]) -> None:
        self._scalars(step, {f"eval/{taskset}/{name}": value for name, value in result.items() if name != "step"})

    def finished(self, summary: Mapping[str, Any]) -> None:
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _scalars(self, step: int, values: Mapping[str, Any]) -> None:
        event = self._proto.Event(wall_time=time.time(), step=step)
        for name, value in values.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                event.summary.value.add(tag=name, simple_value=float(value))
        self._writer.add_event(event)
        self._writer.flush()
