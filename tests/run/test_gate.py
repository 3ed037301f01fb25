"""The gate: how far play may run ahead of training."""

from __future__ import annotations

import pytest

from trinity_core.config.schema import Sync
from trinity_core.run.gate import Gate


def test_an_on_policy_run_plays_one_step_per_version():
    gate = Gate(Sync(), groups_per_step=8)
    assert [gate.limit(v) for v in range(3)] == [8, 16, 24]
    assert [gate.version_for(taken) for taken in (0, 7, 8, 15, 16)] == [0, 0, 1, 1, 2]


def test_an_offset_lets_play_run_ahead_by_that_many_steps():
    gate = Gate(Sync(offset=1), groups_per_step=4)
    # version 0 plays steps 0 and 1, version v plays step v + 1
    assert [gate.limit(v) for v in range(3)] == [8, 12, 16]
    assert [gate.version_for(4 * step) for step in range(5)] == [0, 0, 1, 2, 3]


def test_an_interval_delivers_only_every_so_many_steps():
    gate = Gate(Sync(interval=3), groups_per_step=2)
    # versions 0, 1, 2 may all play steps 0..2: nothing new opens before version 3
    assert [gate.limit(v) for v in range(5)] == [6, 6, 6, 12, 12]
    assert [gate.version_for(2 * step) for step in range(7)] == [0, 0, 0, 3, 3, 3, 6]


@pytest.mark.parametrize("sync", [Sync(interval=i, offset=o) for i in (1, 2, 3) for o in (0, 1, 2)])
def test_the_earliest_version_for_a_step_opens_it_and_no_earlier_one_does(sync):
    gate = Gate(sync, groups_per_step=5)
    for step in range(12):
        version = gate.version_for(5 * step)
        assert gate.limit(version) > 5 * step
        assert version == 0 or gate.limit(version - 1) <= 5 * step


@pytest.mark.parametrize("staleness", [0, 1, 2, 5])
def test_an_asynchronous_run_never_plays_further_ahead_than_its_staleness(staleness):
    gate = Gate(Sync(mode="async", max_staleness=staleness), groups_per_step=3, last_step=20)
    for version in range(10):
        # the last group that may start under `version` trains at step (limit - 1) // 3, counted from 0
        assert (gate.limit(version) - 1) // 3 - version == staleness


def test_an_asynchronous_run_starts_nothing_for_steps_after_its_last():
    assert Gate(Sync(mode="async", max_staleness=5), groups_per_step=3, last_step=4).limit(9) == 12


def test_play_that_may_overlap_training_never_shares_a_module():
    assert not Gate(Sync(), 1).overlaps
    for sync in (Sync(offset=1), Sync(interval=2), Sync(mode="async")):
        assert Gate(sync, 1).overlaps
