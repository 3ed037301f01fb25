"""The middle of a step: measure → credit → updates. Everything frozen is computed once, over the whole lease."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trinity_core.algo.assemble import action_tokens, advantage_batch, assemble
from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.credit import apply_credit, penalise
from trinity_core.algo.cut import mini_batches
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.config.schedule import at_step, evaluate
from trinity_core.config.schema import Optim, RunConfig
from trinity_core.errors import RunError
from trinity_core.protocols import LiveBackend
from trinity_core.run.teacher import Teacher
from trinity_core.types import Group, Ok


@dataclass(frozen=True)
class Algorithm:
    """The parts of a run's algorithm, with what they need worked out once."""

    config: RunConfig

    @property
    def needs(self) -> frozenset[str]:
        """Union over advantage, loss, corrections and KL: nothing else is computed."""
        config = self.config
        needs = set(config.part("loss").needs())
        if advantage := config.part("advantage"):
            needs |= advantage.needs()
        if config.slots("corrections"):
            needs |= {"sampler_logp", "old_logp"}
        if self.uses_reference:
            needs.add("ref_logp")
            if config.algorithm.kl.estimator == "corrected_k3":
                needs.add("old_logp")
        if (config.algorithm.kl.where == "reward" and self.uses_reference) or config.algorithm.kl.target is not None:
            needs.add("old_logp")
        if config.algorithm.entropy_coef != 0:
            needs.add("entropy_grad")
        return frozenset(needs)

    @property
    def uses_reference(self) -> bool:
        return self.config.algorithm.kl.coef != 0

    @property
    def updates_per_step(self) -> int:
        return self.config.optim.epochs * self.config.optim.mini_batches

    @property
    def old(self) -> str:
        """Where old log-probabilities come from: *forward, measured, sampler*."""
        asked = self.config.algorithm.old_logp
        if asked == "auto":
            before_credit = self.config.algorithm.kl.where == "reward" and self.uses_reference
            advantage = self.config.part("advantage")
            before_credit = before_credit or (advantage is not None and "old_logp" in advantage.needs())
            before_credit = before_credit or self.config.algorithm.kl.target is not None
            return "forward" if self.updates_per_step == 1 and not before_credit else "measured"
        return {"forward": "forward", "measure": "measured", "sampler": "sampler"}[asked]

    def objective(self, step: int) -> Objective:
        """The picklable loss of ``step`` (from 1; schedules count from 0): no component counts steps."""
        config = self.config
        return Objective.of(
            loss=at_step(config.part("loss"), step - 1),
            corrections=tuple(at_step(part.component, step - 1) for part in config.slots("corrections").values()),
            kl=config.algorithm.kl if self.uses_reference and config.algorithm.kl.where == "loss" else None,
            entropy=config.algorithm.entropy_coef != 0,
            watch="entropy" in type(config.part("backend")).provides,
            old=self.old,
        )

    def critic(self, step: int) -> tuple[Objective | None, bool]:
        """The value model's objective, if something needs values; and whether ``step`` trains the policy beside it."""
        critic = self.config.critic
        if critic is None or "value" not in self.needs:
            return None, True
        return Objective.critic(critic.clip), step > critic.warmup_steps


@dataclass
class Prepared:
    """A lease, measured and credited, ready to be cut into updates."""

    batch: TrainBatch
    metrics: dict[str, float]


def prepare(
    algorithm: Algorithm,
    backend: LiveBackend,
    groups: Sequence[Group],
    *,
    seed: int,
    step: int,
    teacher: Teacher | None = None,
    kl_coef: float | None = None,
) -> Prepared:
    """Measure what is needed, once, and turn scores into credit. ``kl_coef``: the present value of an adaptive coefficient."""
    config = algorithm.config
    batch = assemble(groups, seed=seed, step=step)
    batch.coef = {
        "kl": evaluate(config.algorithm.kl.coef, step - 1) if kl_coef is None else kl_coef,
        "entropy": evaluate(config.algorithm.entropy_coef, step - 1),
        "value": config.critic.coef if config.critic else 0.0,
    }
    needs = algorithm.needs
    metrics = group_metrics(groups) | {f"batch/{name}": float(number) for name, number in batch.counts.items()}
    if algorithm.uses_reference:
        metrics["kl/coef"] = batch.coef["kl"]
    if not batch.num_actions:
        return Prepared(batch, metrics)
    if "pairs" in needs and not len(batch.pairs_P2):
        raise RunError(
            f"step {step}: {type(config.part('loss')).__name__} learns from pairs of chosen and rejected attempts, and none of "
            f"its {len(groups)} groups has any. An operator, or the data, must set Group.pairs"
        )
    advantage = config.part("advantage")
    measure(algorithm, backend, groups, batch, teacher)
    if config.algorithm.mask_truncated:
        truncated_A = np.array([attempt.truncated for group in groups for attempt in group.attempts])
        batch.keep_N = batch.keep_N & ~truncated_A[batch.attempt_B[batch.row_N]]
    if advantage is not None:
        in_reward = algorithm.uses_reference and config.algorithm.kl.where == "reward"
        scores = advantage_batch(groups, batch, advantage.needs() | ({"old_logp", "ref_logp"} if in_reward else set()))
        if in_reward:
            scores = penalise(scores, batch.coef["kl"], config.algorithm.kl.estimator)
        credit = at_step(advantage, step - 1)(scores)
        apply_credit(batch, scores, credit)
        metrics |= {f"advantage/{name}": float(value) for name, value in credit.metrics.items()}
    return Prepared(batch, metrics)


def measure(
    algorithm: Algorithm, backend: LiveBackend, groups: Sequence[Group], batch: TrainBatch, teacher: Teacher | None
) -> None:
    """Fill ``batch.measured`` with what the algorithm's parts read: frozen from here on, over the whole lease."""
    needs, advantage = algorithm.needs, algorithm.config.part("advantage")
    wanted = {"logp"} if algorithm.old == "measured" and "old_logp" in needs else set()
    vocabulary: dict[str, Any] = {}
    if advantage is not None:
        wanted |= {need for need in advantage.needs() if need == "entropy" or need.startswith("vocab:")}
        vocabulary = dict(advantage.vocab())
    if wanted:
        found = backend.measure(batch, "policy", frozenset(wanted), vocabulary=vocabulary)
        batch.measured |= {"old_logp" if name == "logp" else name: array for name, array in found.items()}
    if algorithm.old == "sampler":
        batch.measured["old_logp"] = batch.sampler_logp_N.astype(np.float64)
    if "ref_logp" in needs:
        batch.measured["ref_logp"] = backend.measure(batch, "reference", frozenset({"logp"}))["logp"]
    asked = {"logp": "teacher_logp", "hidden": "teacher_logits"}
    if outputs := frozenset(name for name, need in asked.items() if need in needs):
        assert teacher is not None, "check refuses a run whose parts need a teacher that is not there"
        batch.measured |= {f"teacher_{name}": array for name, array in teacher.measure(groups, batch, outputs).items()}
    if "value" in needs:
        batch.measured["value"] = backend.measure(batch, "critic", frozenset({"value"}))["value"]


def updates(prepared: Prepared, config: RunConfig) -> Iterator[TrainBatch]:
    """The optimizer steps of a step, each with its denominators counted on the host."""
    loss = config.part("loss")
    reduction = config.algorithm.reduction or loss.reduction
    limit = config.sampling.max_attempt_tokens or config.sampling.max_response
    for update in mini_batches(prepared.batch, epochs=config.optim.epochs, mini_batches=config.optim.mini_batches):
        set_weights(
            update,
            reduction,
            by=config.algorithm.by,
            denominator=config.algorithm.denominator,
            max_attempt_tokens=limit,
        )
        yield update


def lr_scale(optim: Optim, update: int, total: int) -> float:
    """Factor of the learning rate at ``update`` (from 0) of ``total``: linear warm-up, then the schedule's shape."""
    if update < optim.warmup_updates:
        return (update + 1) / optim.warmup_updates
    if optim.schedule == "constant":
        return 1.0
    share = min(1.0, (update - optim.warmup_updates) / max(1, total - optim.warmup_updates))
    shape = 1.0 - share if optim.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * share))
    return optim.min_lr_ratio + (1.0 - optim.min_lr_ratio) * shape


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """What a lease looks like before training: rewards and their parts, lengths, spread, faults."""
    attempts = [attempt for group in groups for attempt in group.attempts if attempt.role == "sample"]
    scored = [attempt for attempt in attempts if isinstance(attempt.score, Ok)]
    metrics: dict[str, float] = {
        "groups/count": float(len(groups)),
        "attempts/count": float(len(attempts)),
        "attempts/unscored": float(len(attempts) - len(scored)),
    }
    if scored:
        values = np.array([attempt.value for attempt in scored], dtype=np.float64)
        metrics |= {"reward/mean": float(values.mean()), "reward/std": float(values.std())}
        parts: dict[str, list[float]] = {}
        for attempt in scored:
            assert isinstance(attempt.score, Ok)
            for name, value in attempt.score.parts.items():
                parts.setdefault(name, []).append(value)
        metrics |= {f"reward/part/{name}": float(np.mean(part)) for name, part in parts.items()}
    if attempts:
        sizes = [len(attempt.experiences) for attempt in attempts]
        num_B = action_tokens([experience for attempt in attempts for experience in attempt.experiences])[1]
        num_A = np.bincount(np.repeat(np.arange(len(sizes)), sizes), num_B, minlength=len(sizes))
        metrics |= {
            "response/length": float(num_A.mean()),
            "response/length_max": float(num_A.max()),
            "response/truncated": sum(attempt.truncated for attempt in attempts) / len(attempts),
            "response/branches": sum(max(0, size - 1) for size in sizes) / len(attempts),
        }
        flat = [spread(group) <= 1e-9 for group in groups if len(group.attempts) > 1]
        if flat:
            metrics["groups/zero_spread"] = float(sum(flat) / len(flat))
    return metrics


def spread(group: Group) -> float:
    """Largest minus smallest score of a group's sampled attempts."""
    values = [attempt.value for attempt in group.attempts if attempt.role == "sample" and attempt.value is not None]
    return max(values) - min(values) if values else 0.0


def staleness(groups: Sequence[Group], step: int) -> dict[str, float]:
    """Trainer step minus oldest version, over the groups that sampled."""
    ages: list[Any] = [step - 1 - group.version for group in groups if group.version is not None]
    return {"staleness/mean": float(np.mean(ages)), "staleness/max": float(max(ages))} if ages else {}
