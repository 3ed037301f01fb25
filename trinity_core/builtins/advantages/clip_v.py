"""Group-relative credit without the tokens that would lower entropy most, by the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit, along, groups
from trinity_core.errors import ConfigError
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class ClipV(Advantage):
    """``A = (R − mean_G) / (std_G + eps)`` (GRPO); then action tokens with ``A < 0`` and ``D > μ std D`` leave the update
    (Clip_V, arXiv:2602.03392).

    ``D = Σ_v p_v S_v − S`` with ``S_v = p_v (H + log p_v)``: how far the sampled token lies below what its distribution
    would give on average, under the policy at the start of the step. The population deviation is over the own action tokens of the
    lease. At most ``max_share`` of these leave (but one may), the largest ``D`` first; ties at the edge stay.

    >>> batch = AdvantageBatch.of([0, 1], num_actions_A=[3, 1], entropy_deviation=[0.0, 0.3, 0.4, 0.0])
    >>> ClipV()(batch).keep_N.tolist(), ClipV(mu=1.5, max_share=0.5)(batch).keep_N.tolist()
    ([True, True, False, True], [True, False, False, True])
    """

    claims: ClassVar[frozenset[str]] = frozenset({"zero_on_constant_group", "shift_invariant", "needs_group"})

    mu: float = 2.0
    """Deviations from which on tokens leave."""
    max_share: float = 1e-4
    """Largest share of the lease's action tokens that leave."""
    eps: float = 1e-6
    """Added to the standard deviation of rewards."""

    def __post_init__(self) -> None:
        if self.mu < 0 or self.eps < 0:
            raise ConfigError(f"advantage.mu={self.mu}, advantage.eps={self.eps}: both are 0 or more")
        if not 0 < self.max_share <= 1:
            raise ConfigError(f"advantage.max_share: {self.max_share} must be above 0 and at most 1")

    def needs(self) -> frozenset[str]:
        return frozenset({"vocab:entropy_deviation"})

    def vocab(self) -> Mapping[str, Callable[..., Mapping[str, Any]]]:
        return {"entropy_deviation": entropy_deviation}

    def __call__(self, batch: AdvantageBatch) -> Credit:
        advantage_A = groups.normalized(batch, self.eps)
        deviation_N, own_N = batch.tokens["entropy_deviation"], along.own(batch)
        num, std = int(own_N.sum()), along.std(batch, deviation_N)
        drop_N = (advantage_A[batch.attempt_N] < 0) & (deviation_N > self.mu * std) & (std > 0)
        most = max(int(self.max_share * num), 1)
        if drop_N.sum() > most:
            drop_N &= deviation_N > np.sort(deviation_N[drop_N])[-most - 1]
        return Credit(advantage_A, keep_N=~drop_N, metrics={"dropped": float(drop_N.sum()) / max(num, 1)})


def entropy_deviation(logits_CV: Any, aux: Mapping[str, Any]) -> dict[str, Any]:
    """``D`` of each token (C): ``Σ_v p_v² (H + log p_v) − p (H + log p)``, the last for ``aux["token_C"]``."""
    logp_CV = logits_CV.log_softmax(-1)
    p_CV = logp_CV.exp()
    # a logit of −inf has p = 0, and p log p = 0
    entropy_C1 = -(p_CV * logp_CV.clamp(min=-1e30)).sum(-1, keepdim=True)
    signal_CV = p_CV * (entropy_C1 + logp_CV.clamp(min=-1e30))
    return {
        "entropy_deviation": (p_CV * signal_CV).sum(-1) - signal_CV.gather(-1, aux["token_C"].long()[:, None])[:, 0]
    }
