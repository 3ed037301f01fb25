"""Event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trinity_core.builtins.trackers.tensorboard import TensorBoard
from trinity_core.errors import PluginLoadError
from trinity_core.testing.fakes import FakeRun

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="pip install 'trinity-core[tensorboard]'"
)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events: Any = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def life(folder: Path, first: int, last: int, *, value: float, resumed: bool = False, close: bool = True) -> Any:
    live = TensorBoard().open(FakeRun(dir=folder, step=first - 1))
    live.started({"resumed": resumed, "step": first - 1})
    for step in range(first, last + 1):
        live.step(step, {"reward/mean": value, "loss": math.nan if step == 2 else 0.5})
    live.evaluated(last, "heldout", {"step": last, "taskset": "heldout", "accuracy": 0.25, "n": 200})
    if close:
        live.finished({"status": "finished"})
        live.close()
    return live


def test_scalars_are_read_back_at_their_own_steps(tmp_path):
    life(tmp_path, 1, 3, value=1.0)
    found = scalars(tmp_path)
    assert found["reward/mean"] == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert [step for step, value in found["loss"] if math.isnan(value)] == [2]
    assert found["eval/heldout/accuracy"] == [(3, 0.25)] and found["eval/heldout/n"] == [(3, 200.0)]
    assert "eval/heldout/step" not in found


def test_a_killed_run_has_what_it_wrote_and_its_resume_replaces_the_lost_steps(tmp_path):
    killed = life(tmp_path, 1, 5, value=1.0, close=False)
    assert [step for step, _ in scalars(tmp_path)["reward/mean"]] == [1, 2, 3, 4, 5]
    life(tmp_path, 4, 6, value=2.0, resumed=True)
    assert scalars(tmp_path)["reward/mean"] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0), (6, 2.0)]
    killed.close()


def test_a_run_that_never_started_can_end(tmp_path):
    live = TensorBoard().open(FakeRun(dir=tmp_path))
    live.finished({"status": "failed"})
    live.close()
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(PluginLoadError, match=r"pip install 'trinity-core\[tensorboard\]'"):
        TensorBoard().open(FakeRun(dir=tmp_path))


def test_no_torch_and_no_tracker_library_is_loaded_with_the_modules():
    code = """
import sys
from trinity_core.builtins.trackers import console, jsonl, tensorboard, wandb
print(sorted({"torch", "tensorboard", "wandb", "tensorflow", "rich"} & set(sys.modules)))
"""
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_no_torch_is_loaded_by_writing(tmp_path):
    code = f"""
import sys
from pathlib import Path
import tensorboard.summary.writer.event_file_writer
from trinity_core.builtins.trackers.tensorboard import LiveTensorBoard
from tensorboard.compat.proto import event_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
live = LiveTensorBoard(None, {str(tmp_path)!r}, EventFileWriter, event_pb2)
live.started({{}}); live.step(1, {{"loss": 1.0}}); live.finished({{}})
print("torch" in sys.modules)
"""
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )
