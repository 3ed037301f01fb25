"""The gradient of an update from its micro-batches, in one pass or in two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinity_core.algo.stats import Stats

if TYPE_CHECKING:
    from trinity_core.algo.batch import TrainBatch
    from trinity_core.algo.objective import Objective

Forward = Callable[["TrainBatch"], Mapping[str, Tensor]]
"""``forward(micro)``: each output by name, [N, …] over the action tokens of a micro-batch, in order."""


def accumulate(
    objective: Objective,
    batch: TrainBatch,
    cuts: Sequence[NDArray[np.int64]],
    forward: Forward,
    *,
    two_pass: bool,
    scale: float = 1.0,
) -> tuple[float, Stats]:
    """Add the gradient of ``scale × loss`` to the ``.grad`` of whatever ``forward`` computes with; return loss and stats.

    Direct: each micro-batch is differentiated by itself, so units of the loss's scope must be whole in it. Two-pass: all are
    forwarded without a graph, the objective is differentiated on the whole batch with *every* output of the forward as a
    leaf, then each micro-batch is forwarded again and its outputs' gradients are sent back. Exactly the same gradient, one
    forward more; the graph of one micro-batch lives at a time in both. ``loss`` and stats are not scaled.
    """
    return (_two_pass if two_pass else _direct)(objective, batch, cuts, forward, scale)


def _direct(
    objective: Objective, batch: TrainBatch, cuts: Sequence[NDArray[np.int64]], forward: Forward, scale: float
) -> tuple[float, Stats]:
    loss, stats = 0.0, Stats()
    for rows in cuts:
        micro = batch.select(rows)
        share, part = objective(micro, forward(micro))
        if share.requires_grad:
            (share * scale).backward()  # type: ignore[no-untyped-call]
        loss += float(share.detach())
        stats = stats.merge(part)
    return loss, stats


def _two_pass(
    objective: Objective, batch: TrainBatch, cuts: Sequence[NDArray[np.int64]], forward: Forward, scale: float
) -> tuple[float, Stats]:
    if not len(cuts):
        return 0.0, Stats()
    with torch.no_grad():
        parts = [dict(forward(batch.select(rows))) for rows in cuts]
    sizes = [len(next(iter(part.values()))) for part in parts]
    outputs = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    del parts
    weights, loss, stats = linearize(objective, batch.select(np.concatenate(cuts)), outputs, scale=scale)
    for rows, start, size in zip(cuts, np.concatenate([[0], np.cumsum(sizes)[:-1]]).tolist(), sizes):
        send(forward(batch.select(rows)), {name: weight[start : start + size] for name, weight in weights.items()})
    return loss, stats


def linearize(
    objective: Objective, batch: TrainBatch, outputs: Mapping[str, Tensor], *, scale: float = 1.0
) -> tuple[dict[str, Tensor], float, Stats]:
    """The first of the two passes: ``d (scale × loss) / d output`` of every differentiable output over ``batch``.

    A backend with several ranks gathers all outputs of the update first, and each rank sends back what it forwarded.
    """
    leaves = {name: output.detach().clone() for name, output in outputs.items()}
    leaves = {name: leaf.requires_grad_() if leaf.is_floating_point() else leaf for name, leaf in leaves.items()}
    share, stats = objective(batch, leaves)
    names = [name for name, leaf in leaves.items() if leaf.requires_grad]
    found: Sequence[Tensor | None] = [None] * len(names)
    if share.requires_grad:
        found = torch.autograd.grad(share * scale, [leaves[name] for name in names], allow_unused=True)
    weights = {name: weight for name, weight in zip(names, found) if weight is not None}
    return weights, float(share.detach()), stats


def send(outputs: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """The second pass, for one micro-batch: backward of the sum of output × weight. Frees the graph of ``outputs``."""
    sent = [(outputs[name], weight) for name, weight in weights.items() if outputs[name].requires_grad]
    if sent:
        torch.autograd.backward([output for output, _ in sent], [weight for _, weight in sent])
