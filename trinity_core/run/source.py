"""Where an explorer gets its weights: from the trainer in this process, or from the folder of one in another."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from trinity_core.errors import DeliveryError
from trinity_core.protocols import Ledger
from trinity_core.run.deliver import from_folder
from trinity_core.types import Weights

POLL_S = 0.05


class Bell:
    """Wakes whoever waits for "something changed"; a ring that nobody heard is kept for the next one to wait."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
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

    async def wait(self, version: int, *, exact: bool) -> Weights | None:
        """Version ``version`` (``exact``), or the newest from it on; ``None`` once the run is over."""
        while not self.over:
            found = version if exact else self.newest()
            if found >= version and found in self._weights:
                weights = self._weights[found]
                # what is older than the version taken will not be asked for again
                self._weights = {v: w for v, w in self._weights.items() if v > found}
                return weights
            await self._bell.wait(1.0)
        return None


class Folders:
    """Versions that a trainer in another process announced in the ledger, each a folder of safetensors."""

    def __init__(self, ledger: Ledger, root: Path) -> None:
        self._ledger = ledger
        self._root = root

    @property
    def over(self) -> bool:
        return self._ledger.heard("status") in ("finished", "failed", "stopped", "interrupted")

    def newest(self) -> int:
        found = self._ledger.newest()
        return found[0] if found else -1

    async def wait(self, version: int, *, exact: bool) -> Weights | None:
        while not self.over:
            found = self._ledger.newest()
            if found and found[0] >= version:
                where = self._root / found[1]
                if exact and found[0] != version:
                    where = where.with_name(f"{self._ledger.lineage}-{version}")
                with contextlib.suppress(DeliveryError):  # the trainer moved on and removed it: a newer one is there
                    return from_folder(where)
            await asyncio.sleep(POLL_S)
        return None


Source = Shelf | Folders
