"""What several policy losses share: the clipped surrogate, and the covariance of log-probability and advantage."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trinity_core.algo.loss_batch import LossBatch


def clipped(batch: LossBatch, low: float, high: float) -> Tensor:
    """``max(−A r, −A clip(r, 1 − low, 1 + high))`` per token (arXiv:1707.06347, eq. 7)."""
    ratio_N, advantage_N = batch.ratio_N, batch.advantage_N
    return torch.maximum(-advantage_N * ratio_N, -advantage_N * ratio_N.clamp(1 - low, 1 + high))


def cut_off(batch: LossBatch, low: float, high: float, over: str = "all") -> dict[str, Tensor]:
    """Metrics: where that clip leaves no gradient, above the range with ``A > 0`` and below it with ``A < 0``; NaN outside the
    population it is used over."""
    ratio_N, advantage_N = batch.ratio_N, batch.advantage_N
    outside_N = ~batch.populations[over]
    high_N, low_N = (advantage_N > 0) & (ratio_N > 1 + high), (advantage_N < 0) & (ratio_N < 1 - low)
    return {
        name: where_N.to(ratio_N.dtype).masked_fill(outside_N, math.nan)
        for name, where_N in (("clipped_high", high_N), ("clipped_low", low_N))
    }


def own(batch: LossBatch) -> Tensor:
    """The tokens that statistics of an update are over: the policy's own, without those fixed before the step not to count."""
    return batch.populations["own"] & batch.keep_N


def covariance(batch: LossBatch) -> Tensor:
    """``(logp − mean logp)(A − mean A)`` per token, means over the own tokens of the batch (arXiv:2505.22617, eq. 10).

    Constant; −∞ at tokens that are not :func:`own`.
    """
    own_N = own(batch)
    logp_N, advantage_N = batch.detach(batch.logp_N), batch.advantage_N
    result_N = torch.full_like(logp_N, -math.inf)
    if own_N.any():
        logp, advantage = logp_N[own_N], advantage_N[own_N]
        result_N[own_N] = (logp - logp.mean()) * (advantage - advantage.mean())
    return result_N


def first(order_N: Tensor, by_N: Tensor, number: int) -> Tensor:
    """A mask of the ``number`` tokens with the smallest ``by_N``; of equal ones those with the smallest ``order_N``."""
    place = order_N.argsort(stable=True)
    place = place[by_N[place].argsort(stable=True)][:number]
    chosen_N = torch.zeros_like(by_N, dtype=torch.bool)
    chosen_N[place] = True
    return chosen_N


def share_of(share: float, number: int) -> int:
    """``⌊share · number⌋``; what rounding takes from a whole number does not count."""
    return math.floor(share * number + 1e-9)
