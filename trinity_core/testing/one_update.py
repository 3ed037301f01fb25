"""One update of a live backend, small and the same every time: what contracts and tests of backends compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trinity_core.algo.batch import LossOutput, TrainBatch
from trinity_core.protocols import Backend, LiveBackend, Loss
from trinity_core.testing.fakes import fake_group
from trinity_core.testing.rules import NotApplicable, require
from trinity_core.testing.stage import kit_run
from trinity_core.types import UpdateResult

if TYPE_CHECKING:
    from trinity_core.algo.loss_batch import LossBatch
    from trinity_core.algo.objective import Objective


@dataclasses.dataclass(frozen=True)
class PolicyGradient(Loss):
    """``-ratio · advantage``, with the largest deviation of the ratio from 1 as a metric."""

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        off_N = (batch.detach(batch.ratio_N) - 1).abs()
        return LossOutput.per_token(-batch.ratio_N * batch.advantage_N, off=off_N)


@dataclasses.dataclass(frozen=True)
class WholeBatch(PolicyGradient):
    """The same values under a scope that forbids cutting: a small budget forces two passes."""

    scope = "batch"


@dataclasses.dataclass(frozen=True)
class Broken(PolicyGradient):
    """A loss that is not a number."""

    def __call__(self, batch: LossBatch) -> LossOutput:
        return LossOutput.per_token(batch.logp_N * float("nan"))


def objective(loss: Loss) -> Objective:
    from trinity_core.algo.objective import Objective

    return Objective.of(loss, old="forward")


def batch_for(backend: LiveBackend, *, seed: int = 0) -> TrainBatch:
    """Twelve attempts of unequal length at three tasks, credited, with weights: one update."""
    from trinity_core.algo.assemble import assemble
    from trinity_core.algo.reduce import set_weights

    lengths = ([2, 5, 3, 4], [6, 2, 2, 3], [1, 4, 7, 2])
    groups = [
        fake_group([1.0, 0.0, 0.5, 0.0], lengths[row], row=row, draw=row, seed=seed, tokenizer=backend.tokenizer)
        for row in range(3)
    ]
    batch = assemble(groups, seed=seed, step=0)
    mean_G = np.bincount(batch.group_B, batch.reward_B) / np.bincount(batch.group_B)
    batch.advantage_N = (batch.reward_B - mean_G[batch.group_B])[batch.row_N]
    set_weights(batch, "token_mean")
    return batch


def trained_once(
    backend: LiveBackend, loss: Loss | None = None, *, seed: int = 0, lr_scale: float = 1.0
) -> UpdateResult:
    """One update on :func:`batch_for`."""
    batch = batch_for(backend, seed=seed)
    return backend.update(batch, "policy", objective(loss or PolicyGradient()), lr_scale=lr_scale)


@contextmanager
def opened(component: Backend, tmp: Path, model: str | None = None) -> Iterator[LiveBackend]:
    run = kit_run(component, tmp)
    if model is not None:
        run.config = dataclasses.replace(run.config, model=dataclasses.replace(run.config.model, path=model))
    backend = component.open(run)
    try:
        yield backend
    finally:
        backend.close()


def logp(backend: LiveBackend, model: str = "policy") -> Any:
    return backend.measure(batch_for(backend), model, frozenset({"logp"}))["logp"]


def effect(component: Backend, tmp: Path, loss: Loss) -> tuple[float, float, Any]:
    """(loss, gradient norm, log-probabilities after the step) of one update from the start."""
    with opened(component, tmp) as backend:
        result = trained_once(backend, loss)
        return result.loss, result.grad_norm, logp(backend)


def small_cuts(component: Backend) -> Backend:
    """The same backend with a budget that no two sequences of :func:`batch_for` fit in together."""
    config: Any = component
    if "micro_tokens" not in {field.name for field in dataclasses.fields(config)}:
        raise NotApplicable("it has no field micro_tokens, so the kit cannot choose how it cuts")
    smaller: Backend = dataclasses.replace(config, micro_tokens=1)
    return smaller


def require_close(name: str, found: Any, expected: Any, limit: float) -> None:
    worst = float(np.max(np.abs(np.asarray(found) - np.asarray(expected)), initial=0.0))
    require(worst <= limit, f"{name} differs by {worst:.2e}, at most {limit:.0e} is rounding")
