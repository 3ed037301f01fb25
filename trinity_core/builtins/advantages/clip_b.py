"""Group-relative credit without the tokens that would lower entropy most, by the spread over the lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit, along, groups
from trinity_core.errors import ConfigError
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class ClipB(Advantage):
    """``A = (R − mean_G) / (std_G + eps)`` (GRPO); then action tokens with ``A < 0`` and ``S − mean S < −μ std S`` leave the
    update (Clip_B, arXiv:2602.03392).

    ``S = p (H + log p)`` says how entropy falls when the token's logit rises, with the token's probability ``p`` and the
    entropy ``H`` of its distribution, both of the policy at the start of the step. Mean and population deviation are over the
    own action tokens of the lease.

    ``p = .5`` at ``H = log 2`` has ``S = 0``; ``p = e⁻³`` at ``H = 1`` has ``S = −.0996``. One of these among three of those
    lies ``√3`` deviations below the mean:

    >>> logp, entropy = [-np.log(2)] * 2 + [-3.0, -np.log(2)], [np.log(2)] * 2 + [1.0, np.log(2)]
    >>> batch = AdvantageBatch.of([0, 1], num_actions_A=[3, 1], old_logp=logp, entropy=entropy)
    >>> ClipB(mu=1.7)(batch).keep_N.tolist()
    [True, True, False, True]
    """

    claims: ClassVar[frozenset[str]] = frozenset({"zero_on_constant_group", "shift_invariant", "needs_group"})

    mu: float = 2.5
    """Deviations below the mean from which on tokens leave."""
    eps: float = 1e-6
    """Added to the standard deviation of rewards."""

    def __post_init__(self) -> None:
        if self.mu < 0 or self.eps < 0:
            raise ConfigError(f"advantage.mu={self.mu}, advantage.eps={self.eps}: both are 0 or more")

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp", "entropy"})

    def __call__(self, batch: AdvantageBatch) -> Credit:
        advantage_A = groups.normalized(batch, self.eps)
        logp_N, own_N = batch.tokens["old_logp"], along.own(batch)
        signal_N = np.exp(logp_N) * (batch.tokens["entropy"] + logp_N)
        drop_N = (advantage_A[batch.attempt_N] < 0) & (along.whiten(batch, signal_N, 0.0) < -self.mu)
        return Credit(advantage_A, keep_N=~drop_N, metrics={"dropped": float(drop_N.sum()) / max(int(own_N.sum()), 1)})
