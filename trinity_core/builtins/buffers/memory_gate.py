"""The gate and the meeting, in the memory of one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trinity_core.builtins.buffers import common
from trinity_core.builtins.buffers.state import Place, State
from trinity_core.protocols import Event, Ledger, Opening, Position


class MemoryGate(Ledger):
    """The half of the ledger in memory that is not about groups."""

    def __init__(self, state: State) -> None:
        self.lineage = 0
        self._state = state

    # the gate
    def taken(self) -> int:
        with self._state.lock:
            s = self._state
            return self.in_flight() + s.counted + s.given_up

    def filled(self) -> int:
        with self._state.lock:
            return self._state.counted + self._state.given_up

    def enter(self, owner: str, n: int, limit: int, *, version: int, ttl_s: float) -> list[Opening]:
        with self._write() as s:
            now = s.clock()
            for name, place in list(s.places.items()):
                if place.owner == owner:
                    place.until = max(place.until, now + ttl_s)
                elif place.until <= now:
                    del s.places[name]
                    reason = common.fell_back(place.draw, place.owner, "silent too long")
                    self._event("", "voided", s.committed + 1, reason, place.owner)
            openings = []
            for _ in range(max(0, min(n, limit - self.taken()))):
                opening = Opening(s.next_draw, common.place_id(self.lineage, s.next_draw), version)
                s.places[opening.place] = Place(opening.draw, owner, version, now + ttl_s)
                s.begun[version] = opening.draw
                s.next_draw += 1
                openings.append(opening)
            return openings

    def renew_places(self, owner: str, ttl_s: float) -> None:
        with self._write() as s:
            for place in s.places.values():
                if place.owner == owner:
                    place.until = s.clock() + ttl_s

    def leave(self, place: str) -> None:
        with self._write() as s:
            s.places.pop(place, None)

    def in_flight(self, *, before_version: int | None = None) -> int:
        with self._state.lock:
            now = self._state.clock()
            alive = [place for place in self._state.places.values() if place.until > now]
            return sum(before_version is None or place.version < before_version for place in alive)

    def first_in_flight(self) -> int | None:
        """The lowest draw in flight: in an ordered run groups of later draws wait for it."""
        with self._state.lock:
            now = self._state.clock()
            return min((place.draw for place in self._state.places.values() if place.until > now), default=None)

    def give_up(self, places: int, step: int, reason: str, *, taken: int | None = None) -> bool:
        with self._write() as s:
            if taken is not None and self.taken() != taken:
                return False
            s.given_up += places
            s.short[step] = s.short.get(step, 0) + places
            self._event("", "given_up", step, f"{places} places: {reason}")
            return True

    def short(self, step: int) -> int:
        return self._state.short.get(step, 0)

    def position(self, step: int) -> Position:
        with self._state.lock:
            s = self._state
            draw = 1 + max((draw for version, draw in s.begun.items() if version < step), default=-1)
            return Position(step, draw, s.given_up)

    # the meeting
    def announce(self, version: int, where: str) -> None:
        with self._write() as s:
            s.announced[version] = where

    def newest(self) -> tuple[int, str] | None:
        with self._state.lock:
            return max(self._state.announced.items(), default=None)

    def acknowledge(self, engine: str, version: int, evidence: str) -> None:
        with self._write() as s:
            s.receipts[engine] = (version, evidence)

    def acknowledged(self) -> dict[str, int]:
        with self._state.lock:
            return {engine: version for engine, (version, _) in sorted(self._state.receipts.items())}

    def say(self, key: str, value: str) -> None:
        with self._write() as s:
            s.words[key] = value

    def heard(self, key: str) -> str | None:
        return self._state.words.get(key)

    def close(self) -> None:
        """Nothing to release."""

    # inside
    @contextmanager
    def _write(self) -> Iterator[State]:
        """The lock, and the fence looked at under it."""
        with self._state.lock:
            common.check_fence(self.lineage, self._state.lineage)
            yield self._state

    def _event(self, group: str, event: str, step: int, reason: str = "", owner: str = "") -> int:
        history = self._state.history
        sequence = len(history) + 1
        history.append(Event(sequence, group, event, step, self.lineage, common.clean(reason), common.clean(owner)))
        return sequence
