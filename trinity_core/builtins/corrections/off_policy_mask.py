"""Sequences that were bad and that the policy has moved away from are left out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trinity_core.errors import ConfigError
from trinity_core.protocols import Correction

if TYPE_CHECKING:
    from trinity_core.algo import LossBatch


@dataclass(frozen=True)
class OffPolicyMask(Correction):
    """Drops tokens with ``A < 0`` of experiences with ``mean_t(sampler − logp) > delta``; weight 1 elsewhere (off-policy
    sequence masking, DeepSeek-V3.2, arXiv:2512.02556, sec. 3.1).

    ``sampler − logp`` is the log-ratio of the policy that sampled, as its engine told it, to the policy *now*, so it holds
    both what updates moved and how engine and trainer differ. Its mean is over all sampled tokens of the experience. With one
    advantage per attempt whole experiences go. A dropped token counts 0 and stays in the denominator.
    """

    scope: ClassVar[Any] = "sequence"
    weighs: ClassVar[bool] = False

    delta: float = 0.1
    """Largest mean divergence, nats per token. The paper gives no value."""

    def __post_init__(self) -> None:
        if not (0 < self.delta < math.inf):
            raise ConfigError(f"correction.delta: {self.delta} must be above 0 nats per token")

    def __call__(self, batch: LossBatch) -> Any:
        sampler_N = batch.sampler_logp_N
        known_N = ~sampler_N.isnan()
        away_N = (sampler_N - batch.detach(batch.logp_N)).nan_to_num(nan=0.0)
        count_B = batch.seq_sum(known_N.to(away_N.dtype)).clamp(min=1.0)
        away_B = batch.seq_sum(away_N) / count_B
        keep_N = ~((batch.advantage_N < 0) & batch.spread(away_B > self.delta))
        return away_N.new_ones(away_N.shape), keep_N
