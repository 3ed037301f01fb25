"""Steps by the run's own loops, with as many groups as asked for, until there are enough of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from trinity_core.config.schema import RunConfig
from trinity_core.errors import RunError
from trinity_core.protocols import Tracker
from trinity_core.run.context import Run
from trinity_core.run.estimate_scratch import at_once
from trinity_core.run.loop import both
from trinity_core.run.session import ticking
from trinity_core.run.state import Training

WARM_STEPS = 2
"""Of one group. The second trains beside the optimizer's state, as every later step does."""
LEAST_STEPS, MOST_STEPS = 4, 20
ENOUGH_S = 8.0
"""Steps are repeated for this long (at least four, at most twenty times)."""
PATIENCE_S = 60.0
"""No step begins that would end later than this after the first one did."""
QUICK_S = 20.0
"""A whole step is played and trained, however many waves it has, if it takes no longer than this."""


class Enough(Exception):
    """The steps that were to be measured are done."""


@dataclasses.dataclass
class StepTime:
    """Seconds of one step, from the end of the one before to its own."""

    wall: float
    wait: float
    """Until its groups were there: sampling, scoring and delivery."""
    train: float

    @property
    def rest(self) -> float:
        """Publishing, metrics, trackers."""
        return max(0.0, self.wall - self.wait - self.train)


class Meter(Tracker):
    """Times steps, and ends the loops when it has seen enough of them."""

    def __init__(self) -> None:
        self.times: list[StepTime] = []
        self.began = self.last = time.perf_counter()
        self.enough: Callable[[Sequence[StepTime], float], bool] = lambda times, seconds: True

    def again(self, enough: Callable[[Sequence[StepTime], float], bool]) -> None:
        self.times, self.enough = [], enough
        self.began = self.last = time.perf_counter()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        now = time.perf_counter()
        self.times.append(StepTime(now - self.last, metrics["time/wait_s"], metrics["time/train_s"]))
        self.last = now
        if self.enough(self.times, now - self.began):
            raise Enough


async def steps(
    run: Run,
    meter: Meter,
    groups: int,
    enough: Callable[[Sequence[StepTime], float], bool],
    *,
    saves: bool = False,
) -> Training:
    """The run's own loops from their beginning, with so many groups a step, until it is enough. ``saves``: every step writes a
    checkpoint, beside the next one where the run's are written so."""
    config, mini_batches = run.config, max(1, run.config.optim.mini_batches)
    share = groups / max(groups, config.groups_per_step)
    run.config = dataclasses.replace(
        config,
        groups_per_step=groups,
        checkpoint=dataclasses.replace(config.checkpoint, every=int(saves)),
        optim=dataclasses.replace(config.optim, mini_batches=max(1, round(mini_batches * share))),
        explorer=dataclasses.replace(config.explorer, max_draws=round(config.explorer.max_draws / share)),
    )
    run.ledger = run.config.part("buffer").open(run)
    run.ledger.begin(None, ordered=run.gate.ordered)
    run.gate = dataclasses.replace(run.gate, groups_per_step=groups)
    run.step, run.receipt, run.reserved = 0, None, False
    if run.engine is not None:
        run.engine.version = -1  # of these steps it holds no version yet
    training = Training(run)
    try:
        async with ticking(run):
            training.announce(await training.publish(0))
            meter.again(enough)
            await both(run, training)
    except Enough:
        return training
    finally:
        run.config = config
    raise RunError("the steps ended before they were measured")


def size_of(config: RunConfig, one_group_s: float) -> int:
    """Groups of a measured step: a whole step where that is quick, else one full wave of the engine."""
    whole = config.groups_per_step
    if one_group_s * whole <= QUICK_S:
        return whole
    return min(whole, -(-at_once(config) // config.algorithm.group_size))


def repeats(config: RunConfig) -> Callable[[Sequence[StepTime], float], bool]:
    """When there are enough steps: always whole cycles of deliveries."""
    cycle = config.sync.interval if config.sync.mode == "ordered" else 1

    def enough(times: Sequence[StepTime], seconds: float) -> bool:
        done = len(times)
        if done % cycle:
            return False
        late = seconds + cycle * seconds / done > PATIENCE_S
        return late or done >= MOST_STEPS or (done >= LEAST_STEPS and seconds >= ENOUGH_S)

    return enough
