"""How the trainer waits: for a whole step in the ledger, and for play to come to rest before a checkpoint."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trinity_core.errors import LedgerError, RunError
from trinity_core.run.alongside import alongside, beats
from trinity_core.types import Lease

if TYPE_CHECKING:
    from trinity_core.run.context import Run

POLL_S, LOOK_S = 0.05, 0.5


async def lease_step(run: Run, step: int) -> Lease:
    """Wait until the strategy finds the groups of ``step``, and lease them. Stale groups are expired on the way.

    Ends with a :class:`RunError` after ``trainer.wait_s``, or when no explorer has been alive for that long.
    """
    config, ledger, gate = run.config, run.ledger, run.gate
    strategy = run.live["sample_strategy"]
    deadline = time.monotonic() + config.trainer.wait_s
    alive = Liveness(run)
    while True:
        first = ledger.first_in_flight() if gate.ordered else None  # read before the index: what ends meanwhile waits
        # where engine and trainer share weights, a step must not move them under a draw in flight
        rests, late = gate.overlaps or first is None, time.monotonic() > deadline
        have = f"step {step}: some of its draws have not ended"
        if rests or late:
            index = ledger.index(max_uses=config.trainer.max_uses)
            if not gate.ordered:
                oldest = step - 1 - config.sync.max_staleness
                stale = [entry.id for entry in index if entry.version is not None and entry.version < oldest]
                if stale:
                    ledger.expire(stale, f"older than {config.sync.max_staleness} steps at step {step}")
                    run.bell.ring()
                    continue
            if first is not None:
                # strict draw order, however many explorers play
                index = [entry for entry in index if entry.draw < first]
            wanted = config.groups_per_step - ledger.short(step)
            ids = strategy(index, wanted)
            enough = wanted > 0 and len(ids) >= wanted
            if rests and enough and (gate.overlaps or ledger.in_flight() == 0):  # none has begun meanwhile
                return ledger.lease(
                    ids[:wanted], owner=f"trainer:{run.id}", step=step, ttl_s=config.trainer.lease_ttl_s
                )
            if not enough:
                have = f"step {step}: {len(ids)} of {wanted} groups"
        if late:
            raise RunError(
                f"{have} after {config.trainer.wait_s:.0f} s (trainer.wait_s). "
                "Look at the explorers' logs, or raise trainer.wait_s"
            )
        alive.check(have)
        if run.mode == "train":
            run.phase_of_trainer = "waiting for groups" if alive.joined else f"waiting for explorers: {joining(run)}"
        # what explorers of this process do rings the bell; of others there is only the ledger to see
        await run.bell.wait(POLL_S if run.mode == "train" else LOOK_S)


def joining(run: Run) -> str:
    """The command that starts an explorer for this run."""
    here = Path.cwd()
    return f"trinity run mode=explore join={run.dir.relative_to(here) if run.dir.is_relative_to(here) else run.dir}"


class Liveness:
    """Whether any explorer that acknowledged a version still sends heartbeats (runs of several processes)."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._beats: dict[str, str | None] = {}
        self._last_seen = time.monotonic()
        self.joined = False
        """Whether an explorer has ever acknowledged a version."""

    def check(self, have: str) -> None:
        """Raise :class:`RunError`, which begins with ``have``, when all have been silent for three times
        ``explorer.place_ttl_s``. A beat is a word that changed: no two machines' clocks are compared."""
        run = self._run
        if run.mode != "train":
            return
        owners = [owner for owner in run.ledger.acknowledged() if owner != run.owner]
        self.joined = bool(owners)
        heard = {owner: run.ledger.heard(f"alive:{owner}") for owner in owners}
        if not owners or heard != self._beats:
            # none has joined yet: the deadline bounds this
            self._beats, self._last_seen = heard, time.monotonic()
            return
        silent = time.monotonic() - self._last_seen
        if silent > 3 * run.config.explorer.place_ttl_s:
            raise RunError(
                f"{have}, and no explorer has been alive for {silent:.0f} s. "
                f"Start one (trinity run mode=explore join={run.dir}) and go on with resume={run.dir}"
            )


async def settled(run: Run, step: int) -> None:
    """Wait until every draw that may be played with a version before ``step`` has ended and been put."""
    deadline = time.monotonic() + run.config.trainer.wait_s
    alive = Liveness(run)
    while run.ledger.in_flight() or run.gate.version_for(run.ledger.taken()) < step:
        have = f"step {step}: draws of earlier versions have not ended"
        if time.monotonic() > deadline:
            raise RunError(f"{have} within {run.config.trainer.wait_s:.0f} s (trainer.wait_s)")
        alive.check(have)
        await run.bell.wait(POLL_S if run.mode == "train" else LOOK_S)


@asynccontextmanager
async def heartbeat(run: Run, lease: Lease) -> AsyncIterator[None]:
    """Keep the lease alive while its step trains; give the groups back if the step fails. A lease that is lost ends it."""
    ttl_s = run.config.trainer.lease_ttl_s
    async with alongside(beats(lambda: run.ledger.renew(lease, ttl_s), ttl_s / 3, ttl_s, first_s=ttl_s / 3)):
        try:
            yield
        except BaseException as error:
            try:
                run.ledger.release(lease)
            except LedgerError as other:
                error.add_note(f"besides, the lease could not be given back: {other}")
            raise
