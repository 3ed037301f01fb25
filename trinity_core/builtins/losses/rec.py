"""Group-relative REINFORCE and its kin: a range, a weighting and a regulariser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from trinity_core.algo import LossBatch, LossOutput, Term
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss

Range = Literal["none", "one_side", "two_side", "ring"]
Weighting = Literal["none", "importance", "advantage"]
Regulariser = Literal["none", "k2", "forward_kl"]


@dataclass(frozen=True)
class REC(Loss):
    """``−A w logp · in_range + coef · regulariser`` (arXiv:2509.24203), per token: REINFORCE on data of any policy.

    With ``r = sg(exp(logp − old))`` and ``d = logp − old``:

    *range*: ``none`` · ``one_side`` ``A ≥ 0: r ≤ 1 + high; A ≤ 0: r ≥ 1 − low`` · ``two_side`` ``1 − low ≤ r ≤ 1 + high`` ·
    ``ring`` two_side, or ``A ≥ 0, r ≤ 1 − low_prime``, or ``A ≤ 0, r ≥ 1 + high_prime``.

    *weighting*, ``w``: ``none`` 1 · ``importance`` ``r`` · ``advantage`` ``exp(A / temperature)``.

    *regulariser*, outside range and weighting: ``none`` · ``k2`` ``d²`` · ``forward_kl`` ``−logp``.

    Claims follow from the options. The metrics count tokens outside the range: ``clipped_high`` where
    ``A > 0``, ``clipped_low`` where ``A < 0``.
    """

    claims: ClassVar[frozenset[str]] = frozenset({"inert_at_zero_advantage", "policy_gradient_at_ratio_1"})

    range: Range = "none"
    """Which tokens count, by their ratio: *none* (all), *one_side* (PPO's), *two_side*, *ring*."""
    weighting: Weighting = "none"
    """Factor of a token: *none*, *importance*, *advantage*."""
    regulariser: Regulariser = "none"
    """What is added for every token: *none*, *k2*, *forward_kl*."""
    low: float = 0.2
    """Range below 1: ratios from ``1 − low``. Above 0, at most 1."""
    high: float = 0.2
    """Range above 1: ratios up to ``1 + high``. Above 0."""
    low_prime: float = 0.6
    """*ring*: tokens of positive advantage count again from ``1 − low_prime`` downwards. Between ``low`` and 1."""
    high_prime: float = 2.0
    """*ring*: tokens of negative advantage count again from ``1 + high_prime`` upwards. At least ``high``."""
    coef: float = 0.0
    """Factor of the regulariser. 0 or more."""
    temperature: float = 1.0
    """Scale of the advantage in the weighting *advantage*. Above 0."""

    def __post_init__(self) -> None:
        for name, kind in (("range", Range), ("weighting", Weighting), ("regulariser", Regulariser)):
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(
                    f"loss.{name}: {getattr(self, name)!r} is unknown. Choose one of {', '.join(get_args(kind))}"
                )
        if not (0 < self.low <= self.low_prime <= 1 and 0 < self.high <= self.high_prime):
            raise ConfigError(
                f"loss.low={self.low}, loss.low_prime={self.low_prime}, loss.high={self.high}, loss.high_prime={self.high_prime}: "
                "0 < low ≤ low_prime ≤ 1 and 0 < high ≤ high_prime"
            )
        if self.coef < 0:
            raise ConfigError(f"loss.coef: {self.coef} must be 0 or more")
        if (self.coef > 0) != (self.regulariser != "none"):
            raise ConfigError(
                f"loss.coef={self.coef}, loss.regulariser={self.regulariser}: a regulariser has a coefficient above 0, none has 0. "
                "Set both or neither"
            )
        if self.temperature <= 0:
            raise ConfigError(f"loss.temperature: {self.temperature} must be above 0")
        true = {
            "inert_at_zero_advantage": self.coef == 0,  # a regulariser pulls at every token, with credit or without
            "policy_gradient_at_ratio_1": self.weighting != "advantage" and self.regulariser != "forward_kl",
            "reads_old_logp": "old_logp" in self.needs(),
        }
        object.__setattr__(self, "claims", frozenset(claim for claim, holds in true.items() if holds))

    def needs(self) -> frozenset[str]:
        reads_old = self.range != "none" or self.weighting == "importance" or self.regulariser == "k2"
        return frozenset({"old_logp"} if reads_old else ())

    def __call__(self, batch: LossBatch) -> LossOutput:
        advantage_N = batch.advantage_N
        inside_N = self._inside(batch)
        loss_N = -advantage_N * self._weight(batch) * batch.logp_N
        terms = [Term("policy", torch.where(inside_N, loss_N, torch.zeros_like(loss_N)), over="all")]
        if self.regulariser == "k2":
            values_N = (batch.logp_N - batch.old_logp_N) ** 2
            terms.append(Term("regulariser", values_N, over="all", coef=self.coef, policy=False))
        elif self.regulariser == "forward_kl":
            terms.append(Term("regulariser", -batch.logp_N, over="all", coef=self.coef, policy=False))
        outside_N = ~inside_N
        return LossOutput(
            terms,
            {"clipped_high": outside_N & (advantage_N > 0), "clipped_low": outside_N & (advantage_N < 0)},
        )

    def _inside(self, batch: LossBatch) -> Tensor:
        advantage_N = batch.advantage_N
        if self.range == "none":
            return torch.ones_like(advantage_N, dtype=torch.bool)
        ratio_N = batch.detach(batch.ratio_N)
        below_N, above_N = ratio_N <= 1 + self.high, ratio_N >= 1 - self.low
        if self.range == "one_side":
            return ((advantage_N >= 0) & below_N) | ((advantage_N <= 0) & above_N)
        if self.range == "two_side":
            return below_N & above_N
        far_low_N = (advantage_N >= 0) & (ratio_N <= 1 - self.low_prime)
        far_high_N = (advantage_N <= 0) & (ratio_N >= 1 + self.high_prime)
        return (below_N & above_N) | far_low_N | far_high_N

    def _weight(self, batch: LossBatch) -> Tensor:
        if self.weighting == "importance":
            return batch.detach(batch.ratio_N)
        if self.weighting == "advantage":
            return (batch.advantage_N / self.temperature).clamp(-20.0, 20.0).exp()
        return torch.ones_like(batch.advantage_N)
