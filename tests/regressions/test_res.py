"""Resume, checkpoints, exactly-once data: what the ledger answers for."""

from __future__ import annotations

import pytest

from trinity_core.builtins.buffers.memory import MemoryBuffer, MemoryLedger
from trinity_core.builtins.buffers.sql import SQLBuffer
from trinity_core.builtins.strategies.fifo import Fifo
from trinity_core.run.audit import Limits, audit_events
from trinity_core.testing.contracts._support import BareRun, small_group

STEPS, SIZE, EVERY = 6, 3, 2
FILTERED = {4, 9}
"""Draws that an operator filters: every time they are played, like all that is computed."""
PLAYED = [draw for draw in range(STEPS * SIZE + len(FILTERED)) if draw not in FILTERED]
EXPECTED = {step: PLAYED[(step - 1) * SIZE : step * SIZE] for step in range(1, STEPS + 1)}
"""Which draws each step trains when nothing is ever interrupted."""


class Killed(Exception):
    pass


class Dying:
    """A ledger whose process dies at its ``after``-th call; it closes and says nothing."""

    def __init__(self, ledger, after):
        self._ledger, self._left = ledger, after

    def __getattr__(self, name):
        method = getattr(self._ledger, name)

        def call(*args, **kwargs):
            self._left -= 1
            if self._left < 0:
                raise Killed
            return method(*args, **kwargs)

        return call


def run(ledger, run_id, position, trained, checkpoint):
    """An ordered run from ``position`` on. Appends to ``trained`` and puts the newest position into ``checkpoint``."""
    ledger.begin(position, ordered=True)
    step = position.step if position else 0
    while step < STEPS:
        while openings := ledger.enter("x", SIZE, (step + 1) * SIZE, version=step, ttl_s=60):
            for opening in openings:
                group = small_group(run_id, opening.draw, version=step)
                if opening.draw in FILTERED:
                    ledger.drop(group.id, "filtered", "no spread", place=opening.place)
                else:
                    ledger.put(group, place=opening.place)
        ids = Fifo()(ledger.index(), SIZE)
        lease = ledger.lease(ids, owner="t", step=step + 1, ttl_s=60)
        groups = ledger.read(lease.group_ids)
        ledger.commit(lease, step + 1)
        step += 1
        trained[step] = [group.draw for group in groups]
        if step % EVERY == 0:
            checkpoint["position"] = ledger.position(step)


def interrupted(open_handle, run_id, *deaths):
    """Die at each of ``deaths``, resume from the newest checkpoint each time, then go on to the end."""
    trained, checkpoint = {}, {"position": None}
    for after in deaths:
        with pytest.raises(Killed):
            run(Dying(open_handle(), after), run_id, checkpoint["position"], trained, checkpoint)
    ledger = open_handle()
    run(ledger, run_id, checkpoint["position"], trained, checkpoint)
    report = audit_events(ledger.events(), ledger.entries(), Limits(groups_per_step=SIZE))
    assert report.clean, report.problems
    assert report.lineages == len(deaths) + 1
    assert report.groups["committed"] == STEPS * SIZE
    return trained


def in_memory():
    first = MemoryBuffer().open(None)
    return lambda: MemoryLedger(first._state)


def test_nothing_in_flight_is_lost_or_trained_twice_wherever_a_run_dies():
    """RES-02: prompts in flight were lost on resume, so only part of the data was ever trained."""
    assert interrupted(in_memory(), "r") == EXPECTED
    whole = Dying(in_memory()(), 10**6)
    run(whole, "r", None, {}, {})
    calls = 10**6 - whole._left
    assert calls > 50
    for after in range(1, calls):
        assert interrupted(in_memory(), "r", after) == EXPECTED, f"died at call {after}"


@pytest.mark.parametrize("after", [3, 17, 30, 44])
def test_the_same_holds_for_a_ledger_on_disk(after, tmp_path):
    """RES-02, over SQLite."""
    assert interrupted(lambda: SQLBuffer().open(BareRun(tmp_path, "r")), "r", after) == EXPECTED


@pytest.mark.parametrize("deaths", [(25, 10), (40, 1), (40, 25, 3)])
def test_a_run_that_dies_again_while_resuming_still_ends(deaths, tmp_path):
    """RES-03: the second resume hung, because the first had left a straggler's claim behind."""
    assert interrupted(in_memory(), "r", *deaths) == EXPECTED
    assert interrupted(lambda: SQLBuffer().open(BareRun(tmp_path, "r")), "r", *deaths) == EXPECTED
