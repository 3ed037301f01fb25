"""A run's config and parts for a trial: the same, but for what would be seen outside it."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

from trinity_core.config.schema import Part, RunConfig
from trinity_core.plugins import resolve
from trinity_core.protocols import Operator
from trinity_core.run import checkpoint
from trinity_core.run.context import Run
from trinity_core.types import Group


@dataclasses.dataclass(frozen=True)
class AnyPair(Operator):
    """Stands for an operator that asks somebody which attempt is better: the first one is."""

    makes_pairs = True

    async def __call__(self, group: Group) -> list[Group]:
        samples = [attempt for attempt in group.attempts if attempt.role == "sample"]
        if len(samples) < 2:
            return [group]
        pair = [dataclasses.replace(samples[0], role="chosen"), dataclasses.replace(samples[-1], role="rejected")]
        return [dataclasses.replace(group, attempts=pair, pairs=[(0, 1)])]


def scratch_config(config: RunConfig) -> RunConfig:
    """The run's config for a trial: no trackers, a ledger in memory, nobody is asked, no step evaluates or saves, and the meter
    ends it."""
    parts = {path: part for path, part in config.parts.items() if not path.startswith("trackers.")}
    parts["buffer"] = Part("buffer", "memory", "buffer", resolve("buffer", "memory")())
    for slot in not_asked(config):
        part = parts.pop(f"operators.{slot}")
        if type(part.component).makes_pairs:
            parts[part.path] = Part("operator", "any_pair", part.path, AnyPair())
    return dataclasses.replace(
        config,
        parts=parts,
        critic=config.critic and dataclasses.replace(config.critic, warmup_steps=0),
        mode="bench" if config.mode == "bench" else "both",
        steps=max(config.steps, 10_000),
        checkpoint=dataclasses.replace(config.checkpoint, every=0),
        eval=dataclasses.replace(config.eval, every=0, before=False, after=False),
        out=None,
        resume=None,
    )


def not_asked(config: RunConfig) -> list[str]:
    """Slots of operators that wait, for people or services, or that open something of their own to do their work: a trial does
    without them, and leaves alone what they would write."""
    return [
        slot
        for slot, part in config.slots("operators").items()
        if inspect.iscoroutinefunction(call := type(part.component).__call__) or call is Operator.__call__
    ]


def steps_done(config: RunConfig) -> int:
    """Steps that a run which would be resumed has behind it: those of its newest checkpoint. No file of it is read."""
    newest = checkpoint.newest(Path(config.resume) / "checkpoints") if config.resume else None
    return 0 if newest is None else checkpoint.step_of(newest)


def nothing_left(config: RunConfig) -> str:
    """Why a run that would be resumed has nothing to do, with the word that gives it some; "" where it has."""
    done = steps_done(config)
    if config.mode not in ("both", "train") or not done or done < config.steps:
        return ""
    return f"the run has its {config.steps:,} steps: nothing is left to do. To go on, raise steps: steps={done * 2}"


async def take_up(run: Run, folder: Path) -> int:
    """The weights of the newest checkpoint of a run that would be resumed; its step."""
    newest = checkpoint.newest(folder / "checkpoints")
    if newest is None or run.backend is None:
        return 0
    state = checkpoint.load_state(newest)
    await run.compute(run.backend.load, newest / checkpoint.BACKEND)
    return int(state["step"])


def hands_waves(config: RunConfig) -> bool:
    """Whether the engine is handed requests in waves, or each at once and batches by itself."""
    engine = config.part("engine")
    return config.explorer.order == "lockstep" or (engine is not None and "waves" in type(engine).capabilities)


def at_once(config: RunConfig) -> int:
    """Requests that an engine has together."""
    limit = config.explorer.max_concurrent
    return max(1, min(config.explorer.wave, limit) if hands_waves(config) else limit)
