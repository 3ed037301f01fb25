"""Truncated importance sampling between sampler and trainer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trinity_core.errors import ConfigError
from trinity_core.protocols import Correction

if TYPE_CHECKING:
    from trinity_core.algo import LossBatch


@dataclass(frozen=True)
class TruncatedIS(Correction):
    """``w = min(exp(old − sampler), cap)`` per token, without gradient: drops no token (TIS; arXiv:1802.01561 for the cap).

    The kernel counts the mean weight and the share of tokens whose weight was truncated.
    """

    cap: float = 2.0
    """Largest weight."""

    def __post_init__(self) -> None:
        if self.cap <= 0:
            raise ConfigError(f"correction.cap: {self.cap} must be above 0")

    def __call__(self, batch: LossBatch) -> Any:
        log_ratio_N = batch.detach(batch.old_logp_N) - batch.sampler_logp_N
        # the cap inside exp: a difference of any size stays finite
        return log_ratio_N.clamp(max=math.log(self.cap)).exp(), ~log_ratio_N.isnan()
