"""What every key that sizes something means in this run: its value, and the number of sequences, tokens or steps it makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trinity_core.algo.assemble import assemble
from trinity_core.algo.cut import mini_batches
from trinity_core.run.estimate_scratch import hands_waves
from trinity_core.run.estimate_sizes import batch_size, computed, replicated
from trinity_core.run.plan import how_many

if TYPE_CHECKING:
    from trinity_core.config.schema import RunConfig
    from trinity_core.run.context import Run
    from trinity_core.types import Group

Meaning = tuple[str, Any, str]
"""A key, its value here, what comes of it."""


@dataclasses.dataclass(frozen=True)
class Counts:
    """What follows from the config alone."""

    config: RunConfig
    sizes: Mapping[str, int]
    """Tasks by taskset, of those that could be counted."""
    eval_rows: Mapping[str, int]
    """Tasks of one evaluation, by taskset."""
    extra: int = 0
    """Attempts of each draw beside the sampled ones."""
    done: int = 0
    """Steps that a resumed run has behind it."""

    @classmethod
    def of(cls, run: Run, config: RunConfig, *, done: int = 0) -> Counts:
        """Of ``config``, with the tasks that ``run``, a trial of it, has open."""
        limit = config.eval.limit
        rows = {
            slot: len(tasks) if limit is None else min(limit, len(tasks)) for slot, tasks in run.eval_tasksets.items()
        }
        return cls(config, dict(run.sizes), rows, len(run.extra_roles), done)

    @property
    def plays(self) -> bool:
        """Whether anything is sampled for training: not where all tasks bring their attempts along."""
        gives = [part.component.gives() for part in self.config.slots("tasksets").values()]
        return not gives or not all(gives)

    @property
    def most(self) -> str:
        """``up to ``, where some tasks bring attempts along instead of being played."""
        return "up to " if any(part.component.gives() for part in self.config.slots("tasksets").values()) else ""

    @property
    def sequences(self) -> int:
        """Attempts of one step."""
        return self.config.groups_per_step * self.config.algorithm.group_size

    @property
    def limit(self) -> int:
        """Most tokens that one attempt may sample."""
        return self.config.sampling.max_attempt_tokens or self.config.sampling.max_response

    @property
    def steps(self) -> int:
        """Steps that are left."""
        return 0 if self.config.mode == "bench" else max(0, self.config.steps - self.done)

    @property
    def updates(self) -> int:
        """Optimizer steps of one step."""
        return self.config.optim.epochs * self.mini_batches

    @property
    def mini_batches(self) -> int:
        return min(self.config.optim.mini_batches, self.config.groups_per_step)

    @property
    def checkpoints(self) -> int:
        if self.config.mode in ("bench", "explore") or not self.steps:
            return 0
        return _due(self.done, self.config.steps, self.config.checkpoint.every, last=True)

    @property
    def evaluations(self) -> int:
        """How often all eval tasksets are played."""
        config = self.config.eval
        if not self.eval_rows or self.config.mode == "explore":
            return 0
        if self.config.mode == "bench":
            return 1
        due = _due(self.done, self.config.steps, config.every, last=config.after)
        return due + (config.before and not self.done)


def _due(done: int, steps: int, every: int, *, last: bool) -> int:
    """How many steps after ``done`` see something that happens every so often, and at the ``last`` in any case.

    >>> [_due(0, 25, 10, last=True), _due(0, 25, 10, last=False), _due(10, 20, 10, last=True), _due(20, 20, 10, last=True)]
    [3, 2, 1, 0]
    """
    if steps <= done:
        return 0
    found = steps // every - done // every if every > 0 else 0
    return found + (last and not (every > 0 and steps % every == 0))


@dataclasses.dataclass(frozen=True)
class StepSize:
    """What one whole step trains, counted from groups that were played."""

    sequences: int
    tokens: int
    """Of all sequences, prompts and responses."""
    responses: int
    """Tokens that are trained."""
    computed: int
    """Tokens that a forward computes: what several sequences begin with once, where the model can."""
    updates: tuple[dict[str, float], ...]
    """Size of each update of one epoch."""

    @classmethod
    def of(cls, config: RunConfig, played: Sequence[Group], *, shares: bool, alike: int) -> StepSize:
        """``played`` groups, as often as makes a step; ``alike`` tokens are the same in the prompts of different tasks."""
        batch = assemble(replicated(played, config.groups_per_step, alike), seed=0, step=1)
        scope = config.part("loss").scope
        cuts = mini_batches(batch, mini_batches=config.optim.mini_batches) if len(batch) else ()
        sizes = tuple(batch_size(config.part("backend"), update, scope, shares=shares) for update in cuts)
        tokens = int(batch.lengths_B().sum())
        return cls(len(batch), tokens, batch.num_actions, computed(batch, shares=shares), sizes)

    @property
    def largest(self) -> float:
        """Tokens of the largest micro-batch."""
        return max((size["largest"] for size in self.updates), default=0.0)


def keys(counts: Counts, step: StepSize | None, checkpoint_mb: float | None = None) -> list[Meaning]:
    """Each key with its value and its meaning here. ``step``: what was counted from played groups, ``None``: nothing was played."""
    config = counts.config
    if config.mode == "bench":
        return [*_evaluation(counts), *_play(counts, _eval_attempts(counts), "an evaluation")]
    found = [*_tasks(counts)]
    if config.mode != "explore":
        found += _training(counts, step)
    if counts.plays:
        found += _play(counts, counts.sequences + counts.extra * config.groups_per_step, "a step")
        found += _far_ahead(counts)
    if config.mode != "explore":
        size = "" if checkpoint_mb is None else f", {checkpoint_mb:,.0f} MB each"
        kept = min(config.checkpoint.keep, counts.checkpoints)
        stay = f"the last {kept} stay{size}" if kept > 1 else f"the last one stays{size}" if kept else "none is written"
        found += [
            ("checkpoint.every", config.checkpoint.every, f"{how_many(counts.checkpoints, 'checkpoint')} in the run"),
            ("checkpoint.keep", config.checkpoint.keep, stay),
        ]
        found += _evaluation(counts)
    return found


def _tasks(counts: Counts) -> list[Meaning]:
    config, draws = counts.config, counts.steps * counts.config.groups_per_step
    total = sum(counts.sizes.values())
    share = f" from {how_many(total, 'task')}: {_passes(draws / total)}" if total else ""
    found: list[Meaning] = [
        ("steps", config.steps, f"{how_many(draws, 'draw')}{share}"),
        (
            "groups_per_step",
            config.groups_per_step,
            f"{how_many(config.groups_per_step, 'task')} a step, each one group",
        ),
    ]
    if counts.plays:
        beside = f", and {how_many(counts.extra, 'greedy one')} a task that is not trained" if counts.extra else ""
        found.append(
            (
                "algorithm.group_size",
                config.algorithm.group_size,
                f"{counts.most}{how_many(counts.sequences, 'sequence')} a step{beside}",
            )
        )
    return found


def _training(counts: Counts, step: StepSize | None) -> list[Meaning]:
    config, optim = counts.config, counts.config.optim
    groups = -(-config.groups_per_step // counts.mini_batches)
    uneven = "up to " if config.groups_per_step % counts.mini_batches else ""
    largest = max(step.updates, key=lambda size: size["tokens"]) if step and step.updates else None
    if largest is not None:
        what = f"{uneven}{how_many(groups, 'group')}, {how_many(int(largest['sequences']), 'sequence')}, {largest['tokens']:,} tokens an update"
    elif counts.plays:
        what = f"{uneven}{how_many(groups, 'group')}, {how_many(groups * config.algorithm.group_size, 'sequence')} an update"
    else:
        what = f"{uneven}{how_many(groups, 'group')} an update"
    total = counts.updates * counts.steps
    found: list[Meaning] = [
        ("optim.mini_batches", optim.mini_batches, what),
        (
            "optim.epochs",
            optim.epochs,
            f"each sequence in {how_many(optim.epochs, 'update')} a step: {how_many(counts.updates, 'update')} a step, {total:,} in the run",
        ),
    ]
    limit = getattr(config.part("backend"), "micro_tokens", None)
    if limit is not None:
        meaning = f"at most {limit:,} tokens in a micro-batch, unless one sequence has more"
        if largest is not None:
            number = int(largest["micro_batches"])
            each = f"{largest['largest']:,} tokens" if number == 1 else f"at most {largest['largest']:,} tokens"
            passes = ", each computed twice: the loss needs them together" if largest["two_pass"] else ""
            meaning = f"{how_many(number, 'micro-batch', 'micro-batches')} of {each} per update{passes}"
        found.append(("backend.micro_tokens", limit, meaning))
    if config.trainer.max_uses > 1:
        uses = config.trainer.max_uses
        found.append(
            (
                "trainer.max_uses",
                uses,
                f"a group may be in {uses} steps: at least {counts.sequences // uses:,} new sequences a step",
            )
        )
    return found


def _play(counts: Counts, attempts: int, per: str) -> list[Meaning]:
    config = counts.config
    running = min(attempts, config.explorer.max_concurrent)
    found: list[Meaning] = []
    if hands_waves(config):
        wave = min(config.explorer.wave, running)
        waves = -(-attempts // max(1, wave))
        found.append(
            (
                "explorer.wave",
                config.explorer.wave,
                f"{how_many(waves, 'wave')} of {'up to ' if attempts % max(1, wave) else ''}{how_many(wave, 'request')} {per}, for each call of an attempt",
            )
        )
    else:
        found.append(("explorer.wave", config.explorer.wave, "not used: this engine makes its own batches"))
    found.append(
        (
            "explorer.max_concurrent",
            config.explorer.max_concurrent,
            f"all {attempts:,} attempts of {per} at once"
            if running == attempts
            else f"{running:,} of the {attempts:,} attempts of {per} at once",
        )
    )
    most = attempts * counts.limit
    if config.sampling.max_attempt_tokens:
        found.append(("sampling.max_response", config.sampling.max_response, "tokens of one call at most"))
        found.append(("sampling.max_attempt_tokens", counts.limit, f"{most:,} tokens {per} at most, over all calls"))
    else:
        found.append(("sampling.max_response", config.sampling.max_response, f"{most:,} tokens {per} at most"))
    return found


def _far_ahead(counts: Counts) -> list[Meaning]:
    config, found = counts.config, list[Meaning]()
    groups, sync = config.groups_per_step, config.sync
    if config.slots("operators"):
        draws = config.explorer.max_draws * groups
        found.append(
            ("explorer.max_draws", config.explorer.max_draws, f"a step draws at most {draws:,} tasks to keep {groups}")
        )
    if sync.mode == "async":
        ahead = (sync.max_staleness + 1) * groups
        found.append(
            ("sync.max_staleness", sync.max_staleness, f"up to {ahead:,} groups are played and not trained yet")
        )
    elif sync.interval > 1 or sync.offset:
        ahead = (sync.interval + sync.offset) * groups
        found.append(("sync.interval", sync.interval, f"weights are delivered every {how_many(sync.interval, 'step')}"))
        found.append(("sync.offset", sync.offset, f"up to {ahead:,} groups are played and not trained yet"))
    return found


def _evaluation(counts: Counts) -> list[Meaning]:
    config = counts.config.eval
    if not counts.eval_rows:
        return []
    rows = sum(counts.eval_rows.values())
    found: list[Meaning] = []
    if counts.config.mode != "bench":
        found.append(("eval.every", config.every, f"{how_many(counts.evaluations, 'evaluation')} in the run"))
    limit = "null" if config.limit is None else config.limit
    found.append(("eval.limit", limit, f"{how_many(rows, 'task')} an evaluation"))
    found.append(("eval.attempts", config.attempts, f"{how_many(_eval_attempts(counts), 'attempt')} an evaluation"))
    return found


def _eval_attempts(counts: Counts) -> int:
    return sum(counts.eval_rows.values()) * counts.config.eval.attempts


def _passes(share: float) -> str:
    if share < 1:
        return f"{share:.0%} of them"
    return f"each {share:,.0f} times" if share >= 10 else f"each {share:.2g} times"
