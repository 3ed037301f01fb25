"""Policy gradient in a trust region of the second moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.algo.surrogate import own
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class M2PO(Loss):
    """``−A r``, and 0 at the tokens with the largest ``(log r)²`` until its mean over those that stay is at most ``threshold``.

    ``r = exp(logp − sampler)`` is against the policy that sampled, however old. Only tokens that PPO might clip are meant: ``A > 0``
    and ``r > 1``, or ``A < 0`` and ``r < 1``, of the own action tokens of the whole update (M2PO, arXiv:2510.01161, algorithm 1 and
    eqs. 4 and 5; the mean is over all tokens, those left out too). Equal ones leave together. It corrects for stale data by itself:
    choose no ``correction`` beside it.
    """

    scope: ClassVar[Any] = "batch"
    claims: ClassVar[frozenset[str]] = frozenset({"inert_at_zero_advantage", "policy_gradient_at_ratio_1"})

    threshold: float = 0.04
    """Largest mean of the squared log-ratio, in nats²."""

    def __post_init__(self) -> None:
        if self.threshold < 0:
            raise ConfigError(f"loss.threshold: at least 0, got {self.threshold}")

    def needs(self) -> frozenset[str]:
        return frozenset({"sampler_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        sampler_N, advantage_N = batch.sampler_logp_N, batch.advantage_N
        # tokens that nobody sampled have no ratio: theirs is 1
        d_N = batch.logp_N - torch.where(sampler_N.isnan(), batch.detach(batch.logp_N), sampler_N)
        moved_N = batch.detach(d_N)
        moment_N = moved_N**2
        region_N = own(batch) & (advantage_N * moved_N > 0)
        left_out_N = region_N & (moment_N > largest_kept(moment_N[region_N], self.threshold))
        loss_N = -advantage_N * d_N.clamp(-20.0, 20.0).exp()
        return LossOutput.per_token(
            torch.where(left_out_N, torch.zeros_like(loss_N), loss_N), left_out=left_out_N, second_moment=moment_N
        )


def largest_kept(moment: Tensor, threshold: float) -> float:
    """The largest of ``moment`` that stays when the largest leave, equal ones together, until the mean is at most
    ``threshold``; −1 where all leave."""
    ascending = moment.sort().values
    mean = ascending.cumsum(0) / torch.arange(1, len(ascending) + 1, device=moment.device)
    stay = int((mean <= threshold).sum())  # the mean of the smallest grows with their number
    if stay == len(ascending):
        return float("inf")
    below = ascending[:stay][ascending[:stay] < ascending[stay]]  # whose equal leaves, leaves
    return float(below[-1]) if len(below) else -1.0
