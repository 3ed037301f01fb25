"""Where an explorer gets its weights: from the trainer in this process, or from the folder of one in another."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from trinity_core.errors import Fenced, RunError
from trinity_core.protocols import Ledger
from trinity_core.run.deliver import Vanished, from_folder
from trinity_core.types import Weights

POLL_S = 0.05
LOOK_S = 0.5
"""After this long an explorer that waits for a version looks again whether it is still the one to wait for."""
OVER = ("finished", "failed", "stopped", "interrupted")
"""Last words of a trainer."""


class Bell:
    """Wakes whoever waits for "something changed"; a ring that nobody heard is kept for the next one to wait."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    def forget(self) -> None:
        """Only a ring from here on counts."""
        self._event.clear()

    async def wait(self, timeout_s: float) -> None:
        try:
            # not wait_for: on Python 3.11 it swallows a cancellation that arrives together with a ring
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()


class Shelf:
    """Versions the trainer of this process published and no engine has loaded yet."""

    def __init__(self) -> None:
        self._weights: dict[int, Weights] = {}
        self._bell = Bell()
        self.over = False

    def put(self, weights: Weights) -> None:
        self._weights[weights.version] = weights
        self._bell.ring()

    def finish(self) -> None:
        """No version will come any more."""
        self.over = True
        self._bell.ring()

    def newest(self) -> int:
        return max(self._weights, default=-1)

    def check(self) -> None:
        """The trainer lives in this process: it ends the explorer itself."""

    def last_step(self) -> int | None:
        """Steps of the run where the trainer knows better than this explorer's config."""
        return None

    async def wait(self, version: int, *, exact: bool, seconds: float = LOOK_S) -> Weights | None:
        """Version ``version`` (``exact``), or the newest from it on; ``None`` where it has not come within ``seconds``:
        look again at what is wanted."""
        end = time.monotonic() + seconds
        while not self.over:
            found = version if exact else self.newest()
            if found >= version and found in self._weights:
                weights = self._weights[found]
                # what is older than the version taken will not be asked for again
                self._weights = {v: w for v, w in self._weights.items() if v > found}
                return weights
            if (left := end - time.monotonic()) <= 0:
                return None
            await self._bell.wait(left)
        return None


class Folders:
    """Versions that a trainer in another process announced in the ledger, each a folder of safetensors."""

    def __init__(self, ledger: Ledger, root: Path, *, trainer: str, patience_s: float) -> None:
        """``trainer`` is the owner whose heartbeats count; silent for ``patience_s``, it is taken for dead."""
        self._ledger, self._root, self._trainer, self._patience_s = ledger, root, trainer, patience_s
        self._beat: str | None = None
        self._last_seen = time.monotonic()

    @property
    def over(self) -> bool:
        return self._ledger.heard("status") in OVER

    def newest(self) -> int:
        found = self._ledger.newest()
        return found[0] if found else -1

    def check(self) -> None:
        """Raise what will never change by waiting: :class:`Fenced` when the trainer resumed (it will never publish what
        this explorer waits for), :class:`RunError` when it is dead. A beat is a word that changed: no clocks are compared."""
        if (live := self._ledger.live_lineage()) != self._ledger.lineage:
            raise Fenced(f"lineage {live} has begun; this explorer joined {self._ledger.lineage}. It joins again")
        beat = self._ledger.heard(f"alive:{self._trainer}")
        if beat != self._beat:
            self._beat, self._last_seen = beat, time.monotonic()
        silent = time.monotonic() - self._last_seen
        if silent > self._patience_s:
            raise RunError(
                f"{self._root}: the trainer has given no sign of life for {silent:.0f} s (3 × explorer.place_ttl_s). Go on with "
                f"it (trinity run resume={self._root}) and join again (trinity run mode=explore join={self._root})"
            )

    def last_step(self) -> int | None:
        """A trainer that was resumed with more steps says so."""
        said = self._ledger.heard("steps")
        return int(said) if said else None

    async def wait(self, version: int, *, exact: bool, seconds: float = LOOK_S) -> Weights | None:
        end = time.monotonic() + seconds
        while not self.over:
            self.check()
            found = self._ledger.newest()
            if found and found[0] >= version:
                where = self._root / found[1]
                if exact and found[0] != version:
                    where = where.with_name(f"{self._ledger.lineage}-{version}")
                with contextlib.suppress(Vanished):  # the trainer moved on and removed it: a newer one is there
                    return from_folder(where)
            if time.monotonic() >= end:
                return None
            await asyncio.sleep(POLL_S)
        return None


Source = Shelf | Folders
