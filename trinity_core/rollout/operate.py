"""Operators between play and buffer: what computes, in a process; what waits, on the loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

from trinity_core.codec import pack, unpack
from trinity_core.errors import RunError
from trinity_core.protocols import Operator
from trinity_core.rollout.outcome import InWorker, place_of
from trinity_core.rollout.pool import Pool, Spec
from trinity_core.types import Group

GRACE_S = 10.0
"""What an operator that waits has beyond its limit, to end by itself."""


class Operators:
    """The run's operators, in order.

    ``components`` are configs by slot, ``live`` what their ``open`` gave. A plain ``def __call__`` runs in the reward
    processes under a hard kill (``timeout_s``); an ``async def`` runs here, on the live object, and has
    ``timeout_s`` and a moment of grace: one that waits for others up to its ``timeout_s`` can say itself what came of it.
    One that raises, hangs or returns no list of groups ends the run: which groups are trained must not depend on an
    accident.
    """

    def __init__(self, components: Mapping[str, Any], live: Mapping[str, Any], pool: Pool) -> None:
        self._pool = pool
        self._live = dict(live)
        self._limits = {slot: float(component.timeout_s) for slot, component in components.items()}
        # An operator that opens into something else holds state, which lives here and nowhere else.
        self._specs = {
            slot: Spec.of(component, f"operators.{slot}")
            for slot, component in components.items()
            if not inspect.iscoroutinefunction(type(live[slot]).__call__) and live[slot] is component
        }

    async def apply(self, group: Group) -> tuple[list[Group], str]:
        """What is left of ``group``, and the slot that dropped the last of it ("" if something is left)."""
        groups, dropped_by = [group], ""
        for slot in self._live:
            after: list[Group] = []
            for one in groups:
                after += await self._one(slot, one)
            if groups and not after:
                dropped_by = slot
            groups = after
        return groups, dropped_by

    async def _one(self, slot: str, group: Group) -> list[Group]:
        where = f"operators.{slot}"
        if slot in self._specs:
            answer = (await self._pool.run(self._specs[slot], "operator", pack(group), [0]))[0]
            if "groups" not in answer:
                reason = answer.get("error") or answer.get("late") or answer.get("lost")
                trace = answer.get("traceback")
                raise RunError(f"{where}: group {group.id}: {reason}") from (InWorker(trace) if trace else None)
            return [unpack(data) for data in answer["groups"]]
        operator: Operator = self._live[slot]
        limit = self._limits[slot] + GRACE_S
        try:
            async with asyncio.timeout(limit) as timer:
                result = operator(group)
                result = await result if inspect.isawaitable(result) else result
        except Exception as error:
            if timer.expired():
                raise RunError(
                    f"{where}: group {group.id}: it was still waiting after {limit:g} s (its timeout_s and {GRACE_S:g} s). Raise "
                    "timeout_s, or let it filter the group when nothing comes"
                ) from error
            said = f"{where}: group {group.id}: {type(error).__name__}: {error}{place_of(error)}"
            raise RunError(said) from error
        if not isinstance(result, list) or not all(isinstance(one, Group) for one in result):
            raise RunError(f"{where}: group {group.id}: returned a {type(result).__name__}, not a list of groups")
        return result
