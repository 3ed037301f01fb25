"""How a step fills: draws start while there are places, and a step that will not fill is given up in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinity_core.errors import RunError
from trinity_core.protocols import Opening

if TYPE_CHECKING:
    from trinity_core.run.context import Run


class Filling:
    """Counts the draws that each step has taken; filtered and voided draws give their places back and are drawn again."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._step = -1
        self._draws = 0

    def enter(self, room: int) -> list[Opening]:
        """Start up to ``room`` draws under the version the engine holds."""
        run = self._run
        assert run.engine is not None
        config = run.config
        filled = run.ledger.taken() // config.groups_per_step
        if filled != self._step:
            self._step, self._draws = filled, 0
        bound = config.explorer.max_draws * config.groups_per_step
        if self._draws >= bound and run.ledger.in_flight() == 0:
            self._give_up(filled + 1, bound)
            return []
        openings = run.ledger.enter(
            run.owner,
            room,
            run.gate.limit(run.engine.version),
            version=run.engine.version,
            ttl_s=config.explorer.place_ttl_s,
        )
        self._draws += len(openings)
        return openings

    def _give_up(self, step: int, bound: int) -> None:
        """``step`` took ``bound`` draws and is still not full: train what there is, or stop."""
        run = self._run
        size = run.config.groups_per_step
        missing = size - run.ledger.taken() % size
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
        run.tell("warned", f"{text}: it is trained short")
        run.ledger.say(f"short:{step}", str(missing))
        run.ledger.give_up(missing, step, text)
        run.bell.ring()
