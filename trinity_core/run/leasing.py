"""How the trainer waits: for a whole step in the ledger, and for play to come to rest before a checkpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from trinity_core.errors import RunError
from trinity_core.types import Lease

if TYPE_CHECKING:
    from trinity_core.run.context import Run


async def lease_step(run: Run, step: int) -> Lease:
    """Wait until the strategy finds the groups of ``step``, and lease them. Stale groups are expired on the way.

    Ends with a :class:`RunError` after ``trainer.wait_s``, or when no explorer has been alive for that long.
    """
    config, ledger = run.config, run.ledger
    strategy = run.live["sample_strategy"]
    deadline = time.monotonic() + config.trainer.wait_s
    alive = Liveness(run)
    while True:
        first = (
            ledger.first_in_flight() if run.gate.ordered else None
        )  # read before the index: what ends meanwhile waits
        index = ledger.index(max_uses=config.trainer.max_uses)
        if first is not None:
            index = [entry for entry in index if entry.draw < first]  # strict draw order, however many explorers play
        if not run.gate.ordered:
            oldest = step - 1 - config.sync.max_staleness
            stale = [entry.id for entry in index if entry.version is not None and entry.version < oldest]
            if stale:
                ledger.expire(stale, f"older than {config.sync.max_staleness} steps at step {step}")
                run.bell.ring()
                continue
        wanted = config.groups_per_step - int(ledger.heard(f"short:{step}") or 0)
        ids = strategy(index, wanted)
        if wanted > 0 and len(ids) >= wanted:
            return ledger.lease(ids[:wanted], owner=f"trainer:{run.id}", step=step, ttl_s=config.trainer.lease_ttl_s)
        if time.monotonic() > deadline:
            raise RunError(
                f"step {step}: {len(ids)} of {wanted} groups after {config.trainer.wait_s:.0f} s (trainer.wait_s). "
                "Look at the explorers' logs, or raise trainer.wait_s"
            )
        alive.check(step, len(ids), wanted)
        await run.bell.wait(0.05)


class Liveness:
    """Whether any explorer that acknowledged a version still sends heartbeats (runs of several processes)."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last_seen = time.time()

    def check(self, step: int, have: int, wanted: int) -> None:
        run = self._run
        if run.mode != "train":
            return
        owners = [owner for owner in run.ledger.acknowledged() if owner != run.owner]
        if not owners:
            self._last_seen = time.time()
            return  # none has joined yet: the deadline bounds this
        beats = [float(run.ledger.heard(f"alive:{owner}") or 0.0) for owner in owners]
        self._last_seen = max(self._last_seen, *beats)
        silent = time.time() - self._last_seen
        if silent > 3 * run.config.explorer.place_ttl_s:
            raise RunError(
                f"step {step}: {have} of {wanted} groups, and no explorer has been alive for {silent:.0f} s. "
                f"Start one (trinity run mode=explore join={run.dir}) and go on with resume={run.dir}"
            )


async def settled(run: Run, step: int) -> None:
    """Wait until every draw that may be played with a version before ``step`` has ended and been put."""
    deadline = time.monotonic() + run.config.trainer.wait_s
    while run.ledger.in_flight() or run.gate.version_for(run.ledger.taken()) < step:
        if time.monotonic() > deadline:
            raise RunError(
                f"step {step}: draws of earlier versions did not end within {run.config.trainer.wait_s:.0f} s (trainer.wait_s)"
            )
        await run.bell.wait(0.05)


@asynccontextmanager
async def heartbeat(run: Run, lease: Lease) -> AsyncIterator[None]:
    """Keep the lease alive while its step trains; give the groups back if the step fails."""
    ttl_s = run.config.trainer.lease_ttl_s

    async def beat() -> None:
        while True:
            await asyncio.sleep(ttl_s / 3)
            run.ledger.renew(lease, ttl_s)

    beating = asyncio.create_task(beat())
    try:
        yield
    except BaseException:
        run.ledger.release(lease)
        raise
    finally:
        beating.cancel()
