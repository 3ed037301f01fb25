"""Checkpoints: whole or not there."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from trinity_core.errors import CheckpointError
from trinity_core.protocols import LiveBackend
from trinity_core.run import checkpoint


class Weights(LiveBackend):
    """A backend whose weights are one file of the size asked for."""

    def __init__(self, size: int) -> None:
        self.size = size

    def save(self, folder: Path) -> None:
        (folder / "weights.bin").write_bytes(b"w" * self.size)


def test_state_comes_back_as_it_went(tmp_path):
    state = {"step": 3, "chain": "ab", "rng": np.arange(4, dtype=np.uint64), "big": 2**100}
    path = checkpoint.save(tmp_path, 3, Weights(10), state, keep=2)
    assert checkpoint.newest(tmp_path) == path
    found = checkpoint.load_state(path)
    assert found["step"] == 3 and found["big"] == 2**100
    assert found["rng"].tolist() == [0, 1, 2, 3]


def test_the_last_n_are_kept(tmp_path):
    for step in (1, 2, 3, 4):
        checkpoint.save(tmp_path, step, Weights(1), {}, keep=2)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000003", "step-000004"]


@pytest.mark.parametrize("file", ["backend/weights.bin", "state.msgpack"])
def test_a_damaged_file_is_named_with_the_way_on(tmp_path, file):
    checkpoint.save(tmp_path, 1, Weights(10), {}, keep=2)
    path = checkpoint.save(tmp_path, 2, Weights(10), {}, keep=2)
    content = bytearray((path / file).read_bytes())
    content[-1] ^= 1
    (path / file).write_bytes(content)
    with pytest.raises(
        CheckpointError, match=rf"{file.split('/')[-1]}: damaged.*Remove .*step-000002 to go on from step-000001"
    ):
        checkpoint.load_state(path)


def test_a_missing_file_is_named(tmp_path):
    path = checkpoint.save(tmp_path, 1, Weights(10), {}, keep=2)
    (path / "backend" / "weights.bin").unlink()
    with pytest.raises(CheckpointError, match=r"weights\.bin: missing.*start a new run"):
        checkpoint.load_state(path)


def test_a_full_disk_loses_nothing_and_says_so(tmp_path):
    """A file-size limit stands in for a full disk: the write fails half-way, the last good checkpoint stays."""
    good = checkpoint.save(tmp_path, 1, Weights(1000), {"step": 1}, keep=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        with pytest.raises(
            CheckpointError, match=r"step-000002: could not be written.*last good checkpoint is .*step-000001"
        ):
            checkpoint.save(tmp_path, 2, Weights(1_000_000), {"step": 2}, keep=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert checkpoint.newest(tmp_path) == good
    assert checkpoint.load_state(good) == {"step": 1}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".step")] == []
