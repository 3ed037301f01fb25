"""A few micro-steps on the real parts of a run, in a folder that is thrown away: what estimates are made from.

The parts are the run's own and so are the loops; only its folder, ledger and trackers are not. Steps are small first (one
group: everything is allocated and compiled), then as large as one full wave of the engine, or the whole step where that is
quick. Nothing is written outside the scratch folder, and whatever was trained ends with it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity_core.algo.assemble import assemble
from trinity_core.config.schema import RunConfig
from trinity_core.errors import RunError, TrinityError
from trinity_core.rollout.outcome import place_of
from trinity_core.run.context import Run
from trinity_core.run.credit import prepare, updates
from trinity_core.run.deliver import load
from trinity_core.run.estimate_keys import Counts
from trinity_core.run.estimate_memory import (
    CHECKPOINT,
    EVALUATION,
    LOAD,
    MEASURE,
    SAMPLING,
    TRAINING,
    Phases,
    children,
    room,
)
from trinity_core.run.estimate_scratch import at_once, hands_waves, scratch_config, take_up
from trinity_core.run.estimate_sizes import (
    batch_size,
    bytes_by,
    common,
    live_share,
    prompts_of,
    replicated,
    spread,
    update_groups,
    wave_size,
)
from trinity_core.run.estimate_steps import WARM_STEPS, Meter, StepTime, repeats, size_of, steps
from trinity_core.run.parts import open_parts
from trinity_core.run.plan import plan_of
from trinity_core.run.session import Stop, stopping
from trinity_core.run.state import Training
from trinity_core.types import Completion, Group, Request

if TYPE_CHECKING:
    from trinity_core.algo.batch import TrainBatch
    from trinity_core.algo.objective import Objective
    from trinity_core.run.estimate_memory import Done

MOSTLY = 0.75
"""Where updates computed less than this share of their tokens, one is made that computes all."""


@dataclasses.dataclass
class Trial:
    """What was measured."""

    config: RunConfig
    """The run's, not the trial's."""
    plan: dict[str, list[tuple[str, Any]]] = dataclasses.field(default_factory=dict)
    counts: Counts = None  # type: ignore[assignment]  # set when the tasks are open
    start_s: float = 0.0
    """Opening everything and delivering the first weights."""
    room: tuple[int, int] = (0, 0)
    """Bytes that host and GPUs have for it."""
    groups: int = 0
    """Groups of a measured step; the run's own number, or fewer."""
    steps: list[StepTime] = dataclasses.field(default_factory=list)
    updates: list[Done] = dataclasses.field(default_factory=list)
    """Of the measured steps."""
    waves: list[Done] = dataclasses.field(default_factory=list)
    """Of the measured steps; one by one where the engine takes requests so."""
    small: list[Done] = dataclasses.field(default_factory=list)
    """Whatever was done before any evaluation: small steps and measured ones."""
    played: list[Group] = dataclasses.field(default_factory=list)
    """Groups of the last measured step."""
    prompts: list[list[int]] = dataclasses.field(default_factory=list)
    """Rendered prompts of the tasksets."""
    alike: int = 0
    """Tokens that prompts of different tasks begin with alike."""
    eval_s: dict[str, tuple[float, int, int]] = dataclasses.field(default_factory=dict)
    """By eval taskset: seconds, tasks played, tasks of a whole evaluation."""
    checkpoint_s: float = 0.0
    """Until a checkpoint is on the disk."""
    save_s: float = 0.0
    """Of these what a step waits for."""
    checkpoint_bytes: int = 0
    phases: Phases = dataclasses.field(default_factory=Phases)
    children: int = 0
    """Peak bytes of reward processes."""
    shares_prefix: bool = True
    """Whether the backend computes shared prefixes once."""
    too_large: bool = False
    """An update of the run's size would not fit in memory, and was not tried."""
    draws: int = 0
    """Tasks that were played."""


async def measure(config: RunConfig, scratch: Path, say: Callable[[str], None], *, folder: str) -> Trial:
    """Open the parts of ``config`` in ``scratch``, take a few micro-steps, close everything. ``say`` hears what is going on;
    ``folder`` is what the plan calls the run's own.

    Raises what a run of this config would raise at its start or in its first steps.
    """
    run, trial, stop = Run(scratch_config(config), id="plan", dir=scratch), Trial(config), Stop()
    try:
        with stopping(asyncio.current_task(), stop):
            await micro_steps(run, trial, say, folder)
    except asyncio.CancelledError:
        raise stop.error("interrupted") from None
    except TrinityError:
        raise
    except Exception as error:
        short = type(error).__name__ == "OutOfMemoryError"
        fix = "Lower backend.micro_tokens or explorer.wave" if short else "TRINITY_DEBUG=1 shows more"
        raise RunError(f"step {run.step + 1}: {type(error).__name__}: {error}{place_of(error)}. {fix}") from error
    finally:
        problems = await run.close()
        trial.phases.memory.close()
    if problems:
        raise RunError("; ".join(problems))
    return trial


async def micro_steps(run: Run, trial: Trial, say: Callable[[str], None], folder: str) -> None:
    """Load, small steps, measured steps, a checkpoint, some of each evaluation."""
    phases, done = trial.phases, 0
    say("opening model, engine and tasks")
    with phases.phase(LOAD) as loading:
        training = await open_parts(run)
        if trial.config.resume:
            done = await take_up(run, Path(trial.config.resume))
        if run.engine is not None:
            await load(run, await training.publish(0))
    trial.start_s, trial.room = loading.seconds, room()
    run.step = done
    trial.plan = plan_of(run, trial.config, folder=folder)
    run.step = 0
    trial.counts = Counts.of(run, trial.config, done=done)
    trial.prompts = prompts_of(run)
    trial.alike = common(trial.prompts)
    described = run.backend.describe() if run.backend is not None else {}
    trial.shares_prefix = not str(described.get("shared_prefixes", "")).startswith("off")
    watch(run, trial)
    if run.mode != "bench":
        training = await measured_steps(run, trial, say)
        phases.settle()
        trial.small = list(phases.done)
    if run.engine is not None and trial.counts.evaluations:
        await evaluations(run, training, trial, say)
    phases.settle()
    trial.children = children()
    if run.scheduler is not None:
        trial.draws = run.scheduler.counters.groups + run.scheduler.apart.groups


async def measured_steps(run: Run, trial: Trial, say: Callable[[str], None]) -> Training:
    """Steps that warm up, steps that are measured, and what a step of the trial lacks of the run's."""
    phases, meter, whole = trial.phases, Meter(), run.config.groups_per_step
    run.trackers["meter"] = meter
    say("two small steps, of one group each, to warm up")
    await steps(run, meter, 1, lambda times, _: len(times) >= WARM_STEPS)
    trial.groups = size_of(trial.config, meter.times[-1].wall)
    say(f"steps of {trial.groups} groups" + (f" of a step's {whole}" if trial.groups < whole else ""))
    before = len(phases.done)
    training = await steps(run, meter, trial.groups, repeats(trial.config))
    trial.steps = list(meter.times)
    phases.settle()
    ended = [one for one in phases.done[before:] if one.size]  # not what was in flight when it was enough
    trial.updates = [one for one in ended if one.phase == TRAINING]
    trial.waves = [one for one in ended if one.phase == SAMPLING]
    trial.played = run.ledger.read(training.batch_ids)
    if trial.groups < whole or live_share(trial.updates) < MOSTLY:
        await one_update(run, training, trial)
    await one_checkpoint(run, training, meter, trial, say)
    return training


async def one_checkpoint(run: Run, training: Training, meter: Meter, trial: Trial, say: Callable[[str], None]) -> None:
    """A checkpoint by itself, as after the last step; then one that is written while the next step is played and trained, where
    the run writes some so."""
    say("a checkpoint")
    began = time.perf_counter()
    with trial.phases.phase(CHECKPOINT):
        await training.save(run.step)
        trial.save_s = time.perf_counter() - began
        await training.written()
    trial.checkpoint_s = time.perf_counter() - began
    saved = (run.dir / "checkpoints").rglob("*")
    trial.checkpoint_bytes = sum(path.stat().st_size for path in saved if path.is_file())
    if run.config.checkpoint.background and trial.counts.checkpoints > 1:
        say("two more steps, with a checkpoint beside the second")
        with trial.phases.phase(CHECKPOINT):
            later = await steps(run, meter, trial.groups, lambda times, _: len(times) >= 2, saves=True)
            await later.written()


def watch(run: Run, trial: Trial) -> None:
    """See what backend and engine are asked for, whoever asks."""
    component, shares, phases = run.config.part("backend"), trial.shares_prefix, trial.phases
    if run.backend is not None:

        def updated(result: Any, batch: TrainBatch, model: str, objective: Objective) -> Callable[[], dict[str, float]]:
            light = dataclasses.replace(batch, measured={}, extras={})

            def count() -> dict[str, float]:
                rows = objective.live_rows(light) if getattr(component, "skip_inert", False) else None
                return batch_size(component, light, objective.scope, shares=shares, rows=rows)

            return count

        phases.watch(run.backend, "update", TRAINING, updated)
        phases.watch(run.backend, "measure", MEASURE)
    if run.engine is not None:
        if hands_waves(run.config):

            def sampled(
                answers: list[tuple[int, Completion]], requests: Sequence[Request]
            ) -> Callable[[], dict[str, float]]:
                by_place = dict(answers)
                return partial(wave_size, requests, [by_place[place] for place in range(len(requests))])

            phases.watch(run.engine, "stream_wave", SAMPLING, sampled)
        else:
            phases.watch(
                run.engine, "generate", SAMPLING, lambda answer, request: partial(wave_size, [request], [answer])
            )


async def one_update(run: Run, training: Training, trial: Trial) -> None:
    """An update as large as the run's may be, where those of a measured step are smaller: groups that were played, as often as it takes,
    up to two micro-batches. Left out where it would not fit in memory."""
    backend, optim = run.backend, run.config.optim
    assert backend is not None
    wanted = update_groups(trial.config, trial.played, shares=trial.shares_prefix)
    groups = replicated(spread(trial.played), wanted, trial.alike)
    own = dataclasses.replace(run.config, optim=dataclasses.replace(optim, epochs=1, mini_batches=1))
    batch = assemble(groups, seed=run.seed, step=1)
    objective, (critic, _) = training.algorithm.objective(1), training.algorithm.critic(1)
    largest = batch_size(run.config.part("backend"), batch, objective.scope, shares=trial.shares_prefix)["largest"]
    for where, free in zip(("host", "gpu"), room()):
        if bytes_by(trial.phases.done, TRAINING, "largest", where)(largest) > free:
            trial.too_large = True
            return
    prepared = await run.compute(
        prepare,
        training.algorithm,
        backend,
        groups,
        seed=run.seed,
        step=1,
        teacher=training.teacher,
        kl_coef=training.kl_coef,
    )
    for update in updates(prepared, own):
        if critic is not None:
            await run.compute(backend.update, update, "critic", critic, lr_scale=0.0)
        await run.compute(backend.update, update, "policy", objective, lr_scale=0.0)


async def evaluations(run: Run, training: Training, trial: Trial, say: Callable[[str], None]) -> None:
    """One wave of each evaluation."""
    config = run.config.eval
    if run.mode == "bench":  # nothing has played yet: the first wave is slower than all others
        run.config = dataclasses.replace(run.config, eval=dataclasses.replace(config, limit=1))
        await training.evaluate(run.step, await training.publish(run.step))
    weights = await training.publish(run.step)
    everything = dict(run.eval_tasksets)
    for slot, taskset in everything.items():
        rows = len(taskset) if config.limit is None else min(config.limit, len(taskset))
        some = min(rows, -(-at_once(run.config) // max(1, config.attempts)))
        say(f"{some} of the {rows} tasks of evaluation {slot}")
        run.config = dataclasses.replace(run.config, eval=dataclasses.replace(config, limit=some))
        run.eval_tasksets = {slot: taskset}
        began = time.perf_counter()
        with trial.phases.phase(EVALUATION):
            await training.evaluate(run.step, weights)
        trial.eval_s[slot] = (time.perf_counter() - began, some, rows)
    run.eval_tasksets = everything
