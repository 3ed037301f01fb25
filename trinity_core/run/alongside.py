"""What goes on beside the loops: heartbeats and progress. When it fails the run ends, at once and with its error."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from trinity_core.errors import Fenced, LeaseLost, LedgerError


@contextlib.asynccontextmanager
async def alongside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``works`` beside the body and stop them with it. One that fails cancels the body; its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as failed:
        first: BaseException = failed
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__


async def beats(beat: Callable[[], None], every_s: float, ttl_s: float, *, first_s: float = 0.0) -> None:
    """Call ``beat`` every ``every_s`` seconds, for ever; the first time after ``first_s``.

    A ledger that cannot be written now (locked, a server that restarts) is tried again until ``ttl_s`` after the last
    beat: then what the beats kept alive is lost, and its error is raised. A fence or a lost lease is no such accident.
    """
    last = time.monotonic()
    await asyncio.sleep(first_s)
    while True:
        wait_s = every_s
        began = time.monotonic()
        try:
            beat()
            last = began
        except (Fenced, LeaseLost):
            raise
        except LedgerError:
            if time.monotonic() - last >= ttl_s:
                raise
            wait_s = min(every_s, 1.0)
        await asyncio.sleep(wait_s)
