"""Seconds and peak memory of a whole run, from the micro-steps of a trial; and everything that can be counted beforehand."""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity_core.errors import RunError
from trinity_core.protocols import Tokenizer
from trinity_core.run.context import Run
from trinity_core.run.estimate_keys import Counts, Meaning, StepSize, keys
from trinity_core.run.estimate_memory import BETWEEN, CHECKPOINT, EVALUATION, LOAD, MEASURE, SAMPLING, TRAINING
from trinity_core.run.estimate_scratch import at_once, hands_waves, not_asked, scratch_config, steps_done
from trinity_core.run.estimate_sizes import Line, bytes_by, lengthened, live_share
from trinity_core.run.parts import open_tasks
from trinity_core.run.plan import plan_of

if TYPE_CHECKING:
    from trinity_core.config.schema import RunConfig
    from trinity_core.run.estimate_steps import StepTime
    from trinity_core.run.estimate_trial import Trial

MB = 2**20
TRIAL = "trinity-plan-"
"""Prefix of the scratch folder's name."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a run will take. Figures that nothing was measured for are absent."""

    plan: dict[str, list[tuple[str, Any]]]
    """What a run prints first."""
    counted: dict[str, Any]
    """Sequences, tokens and optimizer steps of a step."""
    keys: list[Meaning]
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """*start, sampling, training, rest, step, evaluation, checkpoint* (of it ``checkpoint_wait`` while a step waits), *run*; ``step_worst``: every response as long as it may be."""
    memory_mb: dict[str, float] = dataclasses.field(default_factory=dict)
    """Resident in this machine: *load, sampling, training, checkpoint, evaluation, between, processes, peak*, ``peak_worst``, ``room``."""
    gpu_mb: dict[str, float] = dataclasses.field(default_factory=dict)
    """Allocated on GPUs, the same keys; empty without one."""
    measured: dict[str, Any] = dataclasses.field(default_factory=dict)
    """How: steps, seconds and groups of each, tasks played, operators that were not asked."""


def estimate(config: RunConfig, say: Callable[[str], None], *, folder: str) -> Estimate:
    """Play and train a few micro-steps of ``config`` in a scratch folder. ``folder``: what its plan calls the run's own."""
    from trinity_core.run.estimate_trial import measure

    with tempfile.TemporaryDirectory(prefix=TRIAL) as scratch:
        trial = asyncio.run(measure(config, Path(scratch).resolve(), say, folder=folder))
    return of_trial(trial)


def dry(config: RunConfig, *, folder: str) -> Estimate:
    """What can be counted without the model: tasks are opened, nothing is played."""
    with tempfile.TemporaryDirectory(prefix=TRIAL) as scratch:
        run = Run(scratch_config(config), id="plan", dir=Path(scratch).resolve())
        run.use_tokenizer(_NoTokenizer())
        try:
            open_tasks(run)
            done = steps_done(config)
            counts = Counts.of(run, config, done=done)
            run.step = done
            plan = plan_of(run, config, folder=folder)
        finally:
            asyncio.run(run.close())
    return Estimate(plan, counted(counts, None), keys(counts, None))


class _NoTokenizer(Tokenizer):
    """Stands where the model was not opened."""

    def render(self, *args: Any, **kwargs: Any) -> list[int]:
        raise RunError(
            "a taskset counts tokens when it opens, and --dry opens no model. Drop --dry, or the option that needs them"
        )

    def encode(self, text: str) -> list[int]:
        return self.render(text)


def counted(counts: Counts, step: StepSize | None) -> dict[str, Any]:
    """The numbers of a step that are no estimates: of ``step``, which was played, too."""
    config = counts.config
    found: dict[str, Any] = {"steps": counts.steps, "groups": config.groups_per_step}
    if config.mode == "bench":
        return {"attempts": sum(counts.eval_rows.values()) * config.eval.attempts}
    if counts.plays:
        found |= {"sequences": counts.sequences, "responses_worst": counts.sequences * counts.limit}
    found |= {"updates": counts.updates, "updates_of_run": counts.updates * counts.steps}
    found |= {"checkpoints": counts.checkpoints, "evaluations": counts.evaluations}
    if step is not None:
        found |= {
            "sequences": step.sequences,
            "tokens": step.tokens,
            "prompts": step.tokens - step.responses,
            "responses": step.responses,
            "computed": step.computed,
            "micro_batches": max((int(size["micro_batches"]) for size in step.updates), default=0),
            "micro_tokens": int(step.largest),
        }
    return found


def of_trial(trial: Trial) -> Estimate:
    """From what was measured to the whole run."""
    config, counts = trial.config, trial.counts
    step = worst = None
    how: dict[str, Any] = {"shares": trial.shares_prefix, "alike": trial.alike}
    if trial.played:
        step = StepSize.of(config, trial.played, **how)
        worst = StepSize.of(config, lengthened(trial.played, counts.limit), **how)
    found = counted(counts, step)
    if trial.prompts:
        prompts = [len(prompt) for prompt in trial.prompts]
        found |= {"prompt_mean": statistics.mean(prompts), "prompt_longest": max(prompts), "prompt_alike": trial.alike}
    lengths = [a.num_actions for g in trial.played for a in g.attempts if any(e.calls for e in a.experiences)]
    if lengths:
        found |= {"response_mean": statistics.mean(lengths), "response_longest": max(lengths)}
        found["response_limit"] = counts.limit
    size_mb = trial.checkpoint_bytes / MB if trial.checkpoint_bytes else None
    measured = {
        "steps": len(trial.steps),
        "step_s": [round(one.wall, 4) for one in trial.steps],
        "groups": trial.groups,
        "tasks": trial.draws,
        "left_out": not_asked(config),
        "live": live_share(trial.updates),
        "too_large": trial.too_large,
        "shares_prefix": trial.shares_prefix,
        "checkpoint_mb": size_mb,
    }
    return Estimate(
        trial.plan,
        found,
        keys(counts, step, size_mb),
        seconds(trial, step, worst),
        memory(trial, step, worst, "host"),
        memory(trial, step, worst, "gpu") if trial.room[1] else {},
        measured,
    )


# --- time -------------------------------------------------------------------------------------------------------------


def seconds(trial: Trial, step: StepSize | None, worst: StepSize | None) -> dict[str, float]:
    """Of a step and its parts, of everything else that takes time, and of the run."""
    counts, config = trial.counts, trial.config
    found = {"start": trial.start_s}
    if config.mode != "bench":
        found |= step_seconds(trial, step)
        if worst is not None and step is not None and counts.plays:
            found["step_worst"] = worst_seconds(trial, found, step, worst)
    if trial.eval_s:
        found["evaluation"] = sum(took * rows / max(1, played) for took, played, rows in trial.eval_s.values())
    if counts.checkpoints:
        found |= {"checkpoint": trial.checkpoint_s, "checkpoint_wait": trial.save_s}
    each = found.get("sampling" if config.mode == "explore" else "step", 0.0)
    found["run"] = (
        trial.start_s
        + counts.steps * each
        + counts.evaluations * found.get("evaluation", 0.0)
        + max(0, counts.checkpoints - 1) * trial.save_s  # the others are written while the run goes on
        + found.get("checkpoint", 0.0)
    )
    return found


def step_seconds(trial: Trial, step: StepSize | None) -> dict[str, float]:
    """A whole step: as measured, or scaled from fewer groups."""
    config, kept = trial.config, middle(trial, typical(trial))
    wait, train, rest = (statistics.mean(getattr(one, part) for one in kept) for part in ("wait", "train", "rest"))
    if trial.groups < config.groups_per_step:
        scale = config.groups_per_step / trial.groups
        own = sum(one.seconds for one in trial.updates) / len(trial.steps)
        whole = updates_seconds(trial, step, live_share(trial.updates))
        wait, train = wait * scale, whole + max(0.0, train - own) * scale
    return {"sampling": wait, "training": train, "rest": rest, "step": wait + train + rest}


def typical(trial: Trial) -> Sequence[StepTime]:
    """The steps that show how long one takes: not the first where play runs ahead, which fills the pipe."""
    sync = trial.config.sync
    ahead = sync.mode == "async" or sync.offset > 0
    return trial.steps[1:] if ahead and len(trial.steps) > 1 else trial.steps


def middle(trial: Trial, times: Sequence[StepTime]) -> Sequence[StepTime]:
    """The median step, or the two beside the median: of whole steps, so that their parts add up to them. All where steps differ
    on purpose: play of several at once, then each trained."""
    sync = trial.config.sync
    if sync.mode == "async" or sync.interval > 1 or sync.offset > 0:
        return times
    ordered = sorted(times, key=lambda one: one.wall)
    return ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]


def updates_seconds(trial: Trial, step: StepSize | None, live: float = 1.0) -> float:
    """Seconds of all optimizer steps of one whole step, on the line from tokens to seconds; ``live``: share of its tokens that is
    computed."""
    if step is None or not step.updates:
        return 0.0
    line, per_step = update_line(trial), len(trial.updates) / len(trial.steps)
    share = trial.config.groups_per_step / trial.groups
    made = max(1, round(trial.config.optim.mini_batches / share)) * trial.config.optim.epochs
    models = per_step / max(1, min(made, trial.groups * trial.config.optim.epochs))
    return models * trial.config.optim.epochs * sum(line(size["tokens"] * live) for size in step.updates)


def update_line(trial: Trial) -> Line:
    """Seconds of an update by its tokens. The very first is left out: it prepares what later ones find."""
    done = [one for one in trial.phases.done if one.phase == TRAINING and "tokens" in one.size]
    return Line.through([(one.size["tokens"], one.seconds) for one in done[1:] or done])


def worst_seconds(trial: Trial, found: Mapping[str, float], step: StepSize, worst: StepSize) -> float:
    """A step whose every attempt samples as much as it may, and teaches something. A wave takes as long as its longest reply has
    tokens."""
    counts, config = trial.counts, trial.config
    attempts = counts.sequences + counts.extra * config.groups_per_step
    scale = config.groups_per_step / trial.groups / len(trial.steps)
    if hands_waves(config):
        now = sum(one.size["reply"] for one in trial.waves) * scale
        then = float(-(-attempts // min(attempts, at_once(config))) * counts.limit)
    else:
        now, then = sum(one.size["sampled"] for one in trial.waves) * scale, float(attempts * counts.limit)
    longer = max(1.0, then / now) if now else 1.0
    more = max(0.0, updates_seconds(trial, worst) - updates_seconds(trial, step, live_share(trial.updates)))
    return found["step"] + found["sampling"] * (longer - 1.0) + more


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(trial: Trial, step: StepSize | None, worst: StepSize | None, where: str) -> dict[str, float]:
    """Peak MB by phase, of the whole process tree, and where every response is as long as it may be."""
    peaks = {name: getattr(peak, where) / MB for name, peak in trial.phases.peaks.items()}
    played = [getattr(one.peak, where) / MB for one in trial.small if one.phase == SAMPLING]
    found = {LOAD: peaks[LOAD], **({SAMPLING: max(played)} if played else {})}
    if TRAINING in peaks:
        found[TRAINING] = max(peaks[TRAINING], peaks.get(MEASURE, 0.0))
        if step is not None:  # the largest update may have been a smaller one: some groups skipped, or not tried
            found[TRAINING] = max(found[TRAINING], bytes_by(trial.small, TRAINING, "largest", where)(step.largest) / MB)
    found |= {name: peaks[name] for name in (CHECKPOINT, EVALUATION, BETWEEN) if name in peaks}
    highest = max(found.values())
    beside = trial.children / MB if where == "host" else 0.0
    if where == "host":
        found["processes"] = beside
    found["peak"] = highest + beside
    if worst is not None and trial.counts.plays:
        trained = bytes_by(trial.small, TRAINING, "largest", where)(worst.largest)
        held = min(trial.counts.sequences, at_once(trial.config)) * (
            max(map(len, trial.prompts), default=0) + trial.counts.limit
        )
        sampled = bytes_by(trial.small, SAMPLING, "held", where)(held)
        found["peak_worst"] = max(highest, trained / MB, sampled / MB) + beside
    found["room"] = trial.room[("host", "gpu").index(where)] / MB
    return found
