"""From attempts to the engine: in lockstep waves, or as requests arrive."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from trinity_core.errors import RunError
from trinity_core.protocols import LiveEngine
from trinity_core.types import Completion, Key, Request


class EngineFailed(RunError):
    """The engine raised. Under lockstep it ends the play: the same wave would fail again."""


@dataclass
class _Waiting:
    request: Request
    future: asyncio.Future[Completion]
    place: int = 0
    """Of the attempt that asks."""

    def answer(self, completion: Completion) -> None:
        if not self.future.done():
            self.future.set_result(completion)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Dispatcher:
    """Hands requests to an engine. :meth:`enter` and :meth:`leave` bracket each place that plays attempts."""

    def enter(self, place: int) -> None:
        """A place starts to play."""

    def leave(self, place: int) -> None:
        """A place ends: nothing waits for it any more."""

    def now(self, place: int, key: Key) -> None:
        """The place plays this attempt from now on."""

    async def submit(self, request: Request, place: int = 0) -> Completion:
        raise NotImplementedError

    async def close(self) -> None:
        """Fail what still waits. Twice is fine."""


@dataclass
class Lockstep(Dispatcher):
    """A wave leaves when every running place waits for the engine, sorted by key, cut into fixed sizes.

    A place that awaits anything else (a tool, a world, a clock) is running and not waiting, so the wave waits for it:
    which requests share a wave follows from the run's seed, never from how long something took. Answers come as they end,
    but to an attempt that asks for several things at once, at the end of the wave. One instance per play,
    so that evaluation never shares a wave with play; ``gate`` keeps their waves one after the other on one engine.
    """

    engine: LiveEngine
    wave: int = 64
    """Largest number of requests handed over together."""
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a wave is at the engine."""
    on_wave: Callable[[list[Key]], None] | None = None
    """Told the keys of each wave before it leaves."""
    patience_s: float | None = None
    """A wave that has waited this long is warned about: nothing else would say why a run stands still."""
    on_warning: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        self._running: set[int] = set()
        self._plays: dict[int, Key] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._waiting: dict[int, list[_Waiting]] = {}
        self._flight: asyncio.Task[None] | None = None
        self._check_is_due = False
        self._failure: BaseException | None = None

    def enter(self, place: int) -> None:
        self._running.add(place)

    def leave(self, place: int) -> None:
        self._running.discard(place)
        self._check_soon()

    def now(self, place: int, key: Key) -> None:
        self._plays[place] = key

    async def submit(self, request: Request, place: int = 0) -> Completion:
        if self._failure is not None:
            raise self._failure
        waiting = _Waiting(request, asyncio.get_running_loop().create_future(), place)
        self._waiting.setdefault(place, []).append(waiting)
        self._check_soon()
        try:
            return await waiting.future
        finally:
            # a cancelled attempt must not be waited for
            mine = self._waiting.get(place)
            if mine is not None and waiting in mine:
                mine.remove(waiting)
                if not mine:
                    del self._waiting[place]

    async def close(self) -> None:
        self._silence()
        if self._flight is not None and not self._flight.done():
            self._flight.cancel()
            await asyncio.gather(self._flight, return_exceptions=True)

    def _check_soon(self) -> None:
        # Once everything that is ready now has run: an attempt may ask for several generations at once.
        if not self._check_is_due:
            self._check_is_due = True
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        self._check_is_due = False
        if self._flight is not None and not self._flight.done():
            return
        if not self._waiting or not self._running <= self._waiting.keys():
            if self._waiting and self._alarm is None and self.patience_s is not None:
                self._alarm = asyncio.get_running_loop().call_later(self.patience_s, self._warn)
            return
        self._silence()
        requests = sorted((w for mine in self._waiting.values() for w in mine), key=lambda w: w.request.key)
        self._waiting = {}
        self._flight = asyncio.get_running_loop().create_task(self._fly(requests))
        self._flight.add_done_callback(lambda _: self._check_soon())

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _warn(self) -> None:
        late = sorted(self._running - self._waiting.keys())
        if late and self.on_warning is not None:
            key = self._plays.get(late[0])
            self.on_warning(
                f"a wave has waited {self.patience_s:g} s for {len(late)} of {len(self._running)} attempts that are busy "
                f"with something else, {key} among them. Under lockstep limits count calls; explorer.order=arrival has a "
                "wall-clock limit (explorer.attempt_timeout_s)"
            )

    async def _fly(self, requests: list[_Waiting]) -> None:
        calls = Counter(w.place for w in requests)
        for start in range(0, len(requests), self.wave):
            part = requests[start : start + self.wave]
            if self._failure is None:
                try:
                    async with self.gate:
                        if self.on_wave is not None:
                            self.on_wave([w.request.key for w in part])
                        # several calls of one attempt: which is answered first decides what it does next, so it must not be
                        # a matter of time
                        await _stream(self.engine, part, {i for i, w in enumerate(part) if calls[w.place] > 1})
                except Exception as error:  # noqa: BLE001 - raised by every request of the wave
                    self._failure = EngineFailed(
                        f"engine {type(self.engine).__name__}: {type(error).__name__}: {error}"
                    )
                    self._failure.__cause__ = error
                except asyncio.CancelledError:
                    for w in requests[start:]:
                        w.fail(EngineFailed("the play was closed"))
                    raise
            if self._failure is not None:
                for w in part:
                    w.fail(self._failure)


@dataclass
class Arrival(Dispatcher):
    """Does not wait for anyone. An engine that takes ``waves`` is handed whatever came in while it was busy, at most
    ``wave`` at a time; any other gets each request at once and does its own batching."""

    engine: LiveEngine
    wave: int = 64
    waves: bool = True
    """Whether the engine has the capability ``waves``."""

    def __post_init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._flight: asyncio.Task[None] | None = None

    async def submit(self, request: Request, place: int = 0) -> Completion:
        if not self.waves:
            try:
                return await self.engine.generate(request)
            except Exception as error:
                raise EngineFailed(f"engine {type(self.engine).__name__}: {type(error).__name__}: {error}") from error
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._flight is None or self._flight.done():
            self._flight = asyncio.get_running_loop().create_task(self._fly())
        try:
            return await waiting.future
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    async def close(self) -> None:
        if self._flight is not None and not self._flight.done():
            self._flight.cancel()
            await asyncio.gather(self._flight, return_exceptions=True)

    async def _fly(self) -> None:
        while self._waiting:
            part, self._waiting = self._waiting[: self.wave], self._waiting[self.wave :]
            try:
                await _stream(self.engine, part)
            except Exception as error:  # noqa: BLE001 - raised by every request of the wave
                for w in part:
                    w.fail(EngineFailed(f"engine {type(self.engine).__name__}: {type(error).__name__}: {error}"))
            except asyncio.CancelledError:
                for w in (*part, *self._waiting):
                    w.fail(EngineFailed("the play was closed"))
                raise


async def _stream(engine: LiveEngine, wave: Sequence[_Waiting], at_the_end: Set[int] = frozenset()) -> None:
    """Play a wave. A request is answered as soon as the engine has its answer, those ``at_the_end`` (numbers within the wave) then,
    in their order. Raises :class:`RunError` where the engine answers one twice, or none that was asked, or not all."""
    left, held = set(range(len(wave))), dict[int, Completion]()
    async with contextlib.aclosing(engine.stream_wave([w.request for w in wave])) as answers:
        async for number, completion in answers:
            if number not in left:
                raise RunError(f"the engine answered request {number} of a wave of {len(wave)}, which does not wait")
            left.remove(number)
            if number in at_the_end:
                held[number] = completion
            else:
                wave[number].answer(completion)
    if left:
        raise RunError(f"the engine returned {len(wave) - len(left)} completions for a wave of {len(wave)}")
    for number in sorted(held):
        wave[number].answer(held[number])
