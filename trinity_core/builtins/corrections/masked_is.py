"""Masked importance sampling between sampler and trainer: per token, per sequence, and with IcePop's bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trinity_core.builtins.corrections.ratios import sequence_log_ratio, token_log_ratio
from trinity_core.errors import ConfigError
from trinity_core.protocols import Correction

if TYPE_CHECKING:
    from trinity_core.algo import LossBatch


@dataclass(frozen=True)
class MaskedIS(Correction):
    """``w = r`` where ``low ≤ r ≤ high``, else the token is dropped; ``r = exp(old − sampler)`` per token, without gradient
    (token-level MIS, Liu et al. 2025, *When speed kills stability*).

    A dropped token counts 0 and stays in the denominator.
    """

    low: float = 0.0
    """Smallest ratio that is kept, at most 1."""
    high: float = 2.0
    """Largest ratio that is kept, 1 or more."""

    def __post_init__(self) -> None:
        check_range(self.low, self.high)

    def __call__(self, batch: LossBatch) -> Any:
        return masked(token_log_ratio(batch), self.low, self.high)


@dataclass(frozen=True)
class IcePop(MaskedIS):
    """``w = r`` where ``low ≤ r ≤ high``, else the token is dropped; ``r = exp(old − sampler)`` per token, without gradient
    (IcePop, arXiv:2510.18855, sec. on double-sided calibration: masked importance sampling bounded on both sides).

    The same arithmetic as ``masked_is``, with the paper's bounds. A dropped token counts 0 and stays in the denominator.
    """

    low: float = 0.5
    """Smallest ratio that is kept, at most 1 (the paper's α)."""
    high: float = 5.0
    """Largest ratio that is kept, 1 or more (the paper's β)."""


@dataclass(frozen=True)
class MaskedISSequence(Correction):
    """``w = s`` where ``low ≤ s ≤ high``, else the whole experience is dropped; ``s = exp(Σ_t (old − sampler))`` per
    experience, without gradient (sequence-level MIS, Liu et al. 2025, *When speed kills stability*).

    The ratio grows with length: .012 nats at each of 100 tokens are a ratio of 3.3, and a batch of long sequences may be
    dropped whole. Watch ``correction/…/kept``. A dropped token counts 0 and stays in the denominator.
    """

    scope: ClassVar[Any] = "sequence"

    low: float = 0.0
    """Smallest ratio that is kept, at most 1."""
    high: float = 2.0
    """Largest ratio that is kept, 1 or more."""

    def __post_init__(self) -> None:
        check_range(self.low, self.high)

    def __call__(self, batch: LossBatch) -> Any:
        return masked(sequence_log_ratio(batch), self.low, self.high)


def masked(log_ratio_N: Any, low: float, high: float) -> tuple[Any, Any]:
    """``(ratio, low ≤ ratio ≤ high)``; outside, the ratio is that of the nearer bound, so that it is finite."""
    least, most = math.log(low) if low > 0 else -math.inf, math.log(high)
    return log_ratio_N.clamp(least, most).exp(), (log_ratio_N >= least) & (log_ratio_N <= most)


def check_range(low: float, high: float) -> None:
    if not (0 <= low <= 1 <= high < math.inf):
        raise ConfigError(
            f"correction.low={low}, correction.high={high}: 0 ≤ low ≤ 1 ≤ high, so that tokens on which sampler and trainer agree are kept"
        )
