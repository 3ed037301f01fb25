"""The metrics of one step, on the same names for every algorithm."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trinity_core.errors import RunError
from trinity_core.types import Group, UpdateResult

if TYPE_CHECKING:
    from trinity_core.run.context import Run
    from trinity_core.run.credit import Prepared


OVER_UPDATES: dict[str, Callable[[Sequence[float]], float]] = {"tokens": sum, "skipped": sum, "min": min, "max": max}
"""How a statistic of several updates becomes one of the step, by the last word of its name; all others are averaged."""


def step_metrics(
    run: Run, before: Mapping[str, float], results: Sequence[UpdateResult], groups: Sequence[Group]
) -> dict[str, float]:
    """Everything that is logged for a step: what the lease looked like, what the updates did, what parts logged."""
    metrics = dict(before)
    taken = [result for result in results if result.skipped is None]
    check_skips(run, results, taken)
    for result in results:
        if result.skipped:
            run.tell("warned", f"step {run.step}: an update was skipped: {result.skipped}")
    if results:
        names = sorted({name for result in results for name in result.stats})
        for name in names:
            values = [result.stats[name] for result in results if name in result.stats]
            metrics[name] = float(OVER_UPDATES.get(name.rpartition("/")[2], np.mean)(values))
        empty = sum(result.stats.get("tokens") == 0.0 for result in results)
        if empty:
            run.tell(
                "warned",
                f"step {run.step}: all action tokens of {empty} of {len(results)} updates were dropped before the step, and nothing is "
                "learned from them. Look at algorithm.mask_truncated, and at what the advantage keeps",
            )
        metrics |= {
            "loss": float(np.mean([result.loss for result in results])),
            "grad_norm": float(np.mean([result.grad_norm for result in results])),
            "lr": results[-1].lr,
            "updates/skipped": float(len(results) - len(taken)),
            "updates/empty": float(empty),
            "weights/moved": float(np.mean([result.moved for result in results])),
        }
        check_movement(run.step, taken)
    else:
        if "critic/loss" not in before:  # a critic's warm-up trains no policy on purpose
            run.tell("warned", f"step {run.step}: no action token to train on; the weights stay as they are")
        metrics |= dict.fromkeys(("loss", "grad_norm", "updates/skipped", "updates/empty", "weights/moved"), 0.0)
    trained = sum(group.num_tokens for group in groups)
    metrics |= {
        "tokens/trained": float(trained),
        "tokens/sampled": float(run.tokens_sampled),
        "memory/rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **{f"groups/filtered/{slot}": count for slot, count in run.take_filtered().items()},
        **{f"logged/{name}": value for name, value in run.take_logged().items()},
    }
    return metrics


def critic_metrics(results: Sequence[UpdateResult]) -> dict[str, float]:
    """Loss and gradient norm of the value model's updates."""
    if not results:
        return {}
    return {
        "critic/loss": float(np.mean([result.loss for result in results])),
        "critic/grad_norm": float(np.mean([result.grad_norm for result in results])),
    }


def check_trainable(run: Run, step: int, groups: Sequence[Group], prepared: Prepared) -> None:
    """Groups without a single action token are an error until some step had one: the data, not bad luck, is the cause."""
    if prepared.batch.num_actions:
        run.has_trained = True
    elif groups and not run.has_trained:
        counts = prepared.batch.counts
        raise RunError(
            f"step {step}: none of its {len(groups)} groups has an action token to train on, nor had any before: "
            f"{counts['untrained_attempts']} attempts without a score, {counts['empty_sequences']} sequences in which nothing "
            f"was sampled or marked as target, {counts['missing_logp']} sampled tokens whose log-probability the engine did "
            "not give. Look at workflow, operators and engine"
        )


def check_skips(run: Run, results: Sequence[UpdateResult], taken: Sequence[UpdateResult]) -> None:
    """A step without a single finite update is an error if none was finite before, or the third in a row is not."""
    if not results:
        return
    if taken:
        run.skipped_steps = 0
        return
    run.skipped_steps += 1
    if run.skipped_steps >= PATIENCE or run.step == run.skipped_steps:
        raise RunError(
            f"step {run.step}: every update was skipped ({results[-1].skipped}), {run.skipped_steps} step(s) in a row: nothing is "
            "learned. Look at optim.lr, the loss and the coefficients; the last checkpoint has finite weights"
        )


PATIENCE = 3
"""Steps in a row that may skip every update, once some step had taken one."""


def check_movement(step: int, results: Sequence[UpdateResult]) -> None:
    """A gradient that moves no stored weight is an error: the numbers would say "training" and nothing would learn."""
    for result in results:
        if result.grad_norm > 0 and math.isfinite(result.grad_norm) and result.lr > 0 and result.moved == 0:
            raise RunError(
                f"step {step}: the gradient norm is {result.grad_norm:.3g}, the learning rate {result.lr:.3g}, and not one stored "
                "weight changed (too little precision for this step size). Use float32 master weights, or raise optim.lr"
            )
