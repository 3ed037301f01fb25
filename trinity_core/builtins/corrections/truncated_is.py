"""Truncated importance sampling between sampler and trainer: per token, per sequence."""

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
class TruncatedIS(Correction):
    """``w = min(exp(old − sampler), cap)`` per token, without gradient: drops no token (TIS, Yao et al. 2025, *Your efficient
    RL framework secretly brings you off-policy RL training*; the cap as in arXiv:1802.01561, sec. 4.1).
    """

    cap: float = 2.0
    """Largest weight, 1 or more."""

    def __post_init__(self) -> None:
        check_cap(self.cap)

    def __call__(self, batch: LossBatch) -> Any:
        return truncated(token_log_ratio(batch), self.cap)


@dataclass(frozen=True)
class TruncatedISSequence(Correction):
    """``w = min(exp(Σ_t (old − sampler)), cap)``, one weight for all tokens of an experience, without gradient: drops no
    token (sequence-level TIS, Liu et al. 2025, *When speed kills stability*).

    The unbiased weight of a whole sequence, bounded. It grows with length: .012 nats at each of 100 tokens are a ratio of 3.3.
    """

    scope: ClassVar[Any] = "sequence"

    cap: float = 2.0
    """Largest weight, 1 or more."""

    def __post_init__(self) -> None:
        check_cap(self.cap)

    def __call__(self, batch: LossBatch) -> Any:
        return truncated(sequence_log_ratio(batch), self.cap)


def truncated(log_ratio_N: Any, cap: float) -> tuple[Any, Any]:
    """``(min(ratio, cap), keep)``. The cap is applied inside exp: a difference of any size stays finite."""
    return log_ratio_N.clamp(max=math.log(cap)).exp(), log_ratio_N == log_ratio_N


def check_cap(cap: float) -> None:
    if not (1 <= cap < math.inf):
        raise ConfigError(f"correction.cap: {cap} must be 1 or more: below, it weighs where sampler and trainer agree")
