"""How a step fills: draws start while there are places, and a step that will not fill is given up in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinity_core.errors import RunError
from trinity_core.protocols import Opening

if TYPE_CHECKING:
    from trinity_core.run.context import Run


class Filling:
    """Counts the draws that each step has taken; filtered and voided draws give their places back and are drawn again.

    A step is filled by groups, never by draws in flight: those may all be filtered. Once a step has had its bound of
    draws, nothing starts until all that is in flight has ended; then it is full, or it is given up.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._step = -1
        self._first: int | None = None
        """The first draw of this process since the step began to fill."""
        self._draws = 0

    def enter(self, room: int) -> list[Opening]:
        """Start up to ``room`` draws under the version the engine holds."""
        run = self._run
        assert run.engine is not None
        ledger, config = run.ledger, run.config
        filled = ledger.filled() // config.groups_per_step
        if filled > self._step:
            self._step, self._first, self._draws = filled, None, 0
        bound = config.explorer.max_draws * config.groups_per_step
        if self._draws >= bound:
            # counted after the last draw ended: it may have filled the step
            if ledger.in_flight() == 0 and (places := ledger.filled()) // config.groups_per_step == filled:
                self._give_up(filled + 1, places, bound)
            return []
        openings = ledger.enter(
            run.owner,
            room,
            run.gate.limit(run.engine.version),
            version=run.engine.version,
            ttl_s=config.explorer.place_ttl_s,
        )
        if openings:
            # draws are numbered for all explorers together, so this counts theirs too
            self._first = openings[0].draw if self._first is None else self._first
            self._draws = openings[-1].draw + 1 - self._first
        return openings

    def _give_up(self, step: int, taken: int, bound: int) -> None:
        """``step`` took ``bound`` draws and is still not full: train what there is, or stop."""
        run = self._run
        size = run.config.groups_per_step
        missing = size - taken % size
        reasons = (
            "; ".join(f"{count} × {reason}" for reason, count in run.void_reasons.most_common(3))
            or "filtered by operators"
        )
        text = f"step {step}: {bound} draws gave {size - missing} of {size} groups ({reasons})"
        if missing == size:
            raise RunError(
                f"{text}. There is nothing to train on. Look at the rewards of one attempt (trinity run mode=bench), "
                "use other tasks, drop the operator that filters, or raise explorer.max_draws"
            )
        if run.config.explorer.when_short == "stop":
            raise RunError(f"{text}. explorer.when_short=train would train it short")
        if run.ledger.give_up(missing, step, text, taken=taken):
            run.tell("warned", f"{text}: it is trained short")
        run.bell.ring()
