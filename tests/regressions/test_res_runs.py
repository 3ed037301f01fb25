"""Resume and checkpoints of whole runs: the state that comes back is the state that was left."""

from __future__ import annotations

import os

import pytest
from small_runs import FAKE, events, run, stored

from trinity_core.protocols import LiveBackend
from trinity_core.run import checkpoint
from trinity_core.run.digest import digest

SELECTED = (*FAKE, "selector=run_parts:Counting")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Four steps, never interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(*SELECTED, "steps=4", f"out={folder}")
    return folder


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Two steps, then a resume of two more."""
    folder = tmp_path_factory.mktemp("halves") / "run"
    run(*SELECTED, "steps=2", f"out={folder}")
    run(f"resume={folder}", "steps=4")
    return folder


def test_where_the_data_stands_is_saved_with_the_weights(whole, halves):
    """RES-06: a selector that counts goes on counting; without its state the resumed half would start at row 0 again."""
    assert [group.row for group in stored(whole)] == [number % 10 for number in range(16)]
    assert [group.row for group in stored(halves)] == [group.row for group in stored(whole)]


def test_two_halves_are_one_whole_bit_for_bit(whole, halves):
    """RES-07: weights, optimizer moments, schedules, random numbers, groups and metrics: one hash over all of them."""
    assert digest(halves) == digest(whole)


def test_moments_that_start_again_at_zero_would_show(whole, tmp_path):
    """RES-07: the check above can fail. The same resume with an optimizer emptied on the way ends with other weights."""
    from safetensors.numpy import load_file, save_file

    run(*SELECTED, "steps=2", f"out={tmp_path / 'run'}")
    saved = checkpoint.newest(tmp_path / "run" / "checkpoints")
    file = saved / "backend" / "state.safetensors"
    arrays = load_file(file)
    save_file({k: v if k.endswith("weight") else 0 * v for k, v in arrays.items()}, file)
    meta = checkpoint.read_json(saved / "meta.json", "meta")
    meta["sha256"]["backend/state.safetensors"] = checkpoint._sha256(file)
    checkpoint.write_json(saved / "meta.json", meta)
    run(f"resume={tmp_path / 'run'}", "steps=4")
    assert digest(tmp_path / "run") != digest(whole)


def test_positions_count_tasks_and_not_attempts(halves):
    """RES-10: 4 tasks a step, each attempted 4 times: a resume at step 2 goes on at draw 8, not at 2 or at 32."""
    assert [group.draw for group in stored(halves)] == list(range(16))
    saved = checkpoint.load_state(checkpoint.newest(halves / "checkpoints"))
    assert saved["position"] == {"step": 4, "draw": 16, "given_up": 0}
    assert [line["attempts/count"] for line in events(halves, "step")] == [16] * 4


class Killed(BaseException):
    """The process is gone: nothing after it runs, no cleaning up either."""


class Files(LiveBackend):
    """A backend whose state is two files that name their step."""

    def __init__(self, step):
        self.step = step

    def save(self, folder):
        for part in ("weights", "moments"):
            (folder / part).write_text(f"{part} of step {self.step}")


def dying_at(number, monkeypatch):
    """Die at the ``number``-th call that makes something durable. Returns a list that is emptied when it happened."""
    left = [number]

    def counted(function):
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return function(*args, **kwargs)

        return call

    for name in ("replace", "fsync"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    return left


def test_a_checkpoint_is_whole_wherever_its_writing_stopped(tmp_path, monkeypatch):
    """RES-12: weights, optimizer and position become one checkpoint in one rename, and the pointer follows last."""
    seen, number = set(), 0
    while True:
        root = tmp_path / str(number)
        checkpoint.save(root, 1, Files(1), {"step": 1}, keep=2)
        with monkeypatch.context() as patch:
            dying_at(number, patch)
            try:
                checkpoint.save(root, 2, Files(2), {"step": 2}, keep=2)
                survived = True
            except Killed:
                survived = False
        found = checkpoint.newest(root)
        step = checkpoint.load_state(found)["step"]  # every file's hash is checked
        seen.add((step, survived))
        assert (found / "backend" / "weights").read_text() == f"weights of step {step}"
        # what a killed save left behind does not stand in the way of the next one
        checkpoint.save(root, 2, Files(2), {"step": 2}, keep=2)
        assert checkpoint.load_state(checkpoint.newest(root))["step"] == 2
        if survived:
            break
        number += 1
    assert number >= 5 and {(1, False), (2, True)} <= seen
