"""Online policy mirror descent: the group's mean, or its soft maximum, as baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit, groups
from trinity_core.errors import ConfigError
from trinity_core.protocols import Advantage


@dataclass(frozen=True)
class MirrorDescent(Advantage):
    """``A = R − b``, per attempt, over the ``G`` attempts of the group (OPMD, arXiv:2505.17826, appendix A).

    ``baseline: mean`` is ``b = mean_G``; ``logsumexp`` is ``b = τ (log Σ exp(R/τ) − log G)``, the mirror-descent optimum's
    normaliser (Kimi k1.5, arXiv:2501.12599, sec. 2.3). A group of one, or of equal rewards, gets exactly 0.

    >>> MirrorDescent()(AdvantageBatch.of([1, 0, 0, 0])).advantage.tolist()
    [0.75, -0.25, -0.25, -0.25]
    >>> MirrorDescent(baseline="logsumexp")(AdvantageBatch.of([1, 0, 0, 0])).advantage.round(4).tolist()
    [0.6426, -0.3574, -0.3574, -0.3574]
    """

    claims: ClassVar[frozenset[str]] = frozenset({"zero_on_constant_group", "shift_invariant", "needs_group"})

    baseline: Literal["mean", "logsumexp"] = "mean"
    """``mean``, or ``logsumexp`` at temperature ``tau``: between the mean (large ``tau``) and the largest reward (small)."""
    tau: float = 1.0
    """Temperature of ``logsumexp``, above 0; the mean has none."""

    def __post_init__(self) -> None:
        if self.tau <= 0:
            raise ConfigError(f"advantage.tau: {self.tau} must be above 0")

    def __call__(self, batch: AdvantageBatch) -> Credit:
        centered_A = groups.centered(batch)
        if self.baseline == "mean":
            return Credit(centered_A)
        # of centred rewards, its largest taken out: no exp overflows, and equal rewards give log 1 = 0
        high_A = groups.largest(batch, centered_A)
        sum_A = groups.total(batch, np.exp(np.minimum(centered_A - high_A, 0.0) / self.tau))
        num_A = groups.count(batch)
        base_A = batch.baseline_A
        soft_A = high_A + self.tau * np.log(np.where(base_A, sum_A / np.maximum(num_A, 1), 1.0))
        return Credit(np.where(base_A, centered_A - soft_A, 0.0))
