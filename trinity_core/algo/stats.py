"""Statistics of a training step: sums with counts, totals, extremes and a histogram, so that any cut merges to the same."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_core.errors import DataError

EDGES = np.concatenate([[-np.inf], np.linspace(-2.025, 2.025, 82), [np.inf]])
"""Edges of the histogram of log-ratios, fixed so that histograms add up; quantiles are read to 0.05 nats."""


@dataclass
class Stats:
    """Under each key: ``mean`` [sum, count], ``total`` [sum], ``min``, ``max`` or ``histogram`` [counts over :data:`EDGES`].

    Every micro-batch of one objective has the same keys, also an empty one.
    """

    values: dict[str, tuple[str, list[float]]] = field(default_factory=dict)

    def mean(self, key: str, values: NDArray[Any]) -> None:
        """Average of ``values`` over all micro-batches."""
        self.values[key] = ("mean", [float(np.sum(values, dtype=np.float64)), float(np.size(values))])

    def total(self, key: str, value: float) -> None:
        """Sum over all micro-batches."""
        self.values[key] = ("total", [float(value)])

    def least(self, key: str, values: NDArray[Any]) -> None:
        self.values[key] = ("min", [float(np.min(values, initial=np.inf))])

    def most(self, key: str, values: NDArray[Any]) -> None:
        self.values[key] = ("max", [float(np.max(values, initial=-np.inf))])

    def histogram(self, key: str, values: NDArray[Any]) -> None:
        self.values[key] = ("histogram", np.histogram(values, EDGES)[0].astype(float).tolist())

    def merge(self, other: Stats) -> Stats:
        """Both together. An empty one is neutral; otherwise the keys must be the same."""
        if not self.values or not other.values:
            return Stats(dict(self.values or other.values))
        if self.values.keys() != other.values.keys():
            odd = sorted(self.values.keys() ^ other.values.keys())
            raise DataError(
                f"stats of two micro-batches differ in {', '.join(odd)}. A loss must give the same metrics every time"
            )
        result = {}
        for key, (kind, mine) in self.values.items():
            theirs = other.values[key][1]
            combine: Callable[[float, float], float] = {"min": min, "max": max}.get(kind, operator.add)
            result[key] = (kind, [combine(a, b) for a, b in zip(mine, theirs)])
        return Stats(result)

    @classmethod
    def merged(cls, parts: Iterable[Stats]) -> Stats:
        result = cls()
        for part in parts:
            result = result.merge(part)
        return result

    def summary(self) -> dict[str, float]:
        """One number per key (three quantiles per histogram); keys that nothing was counted under are left out."""
        result: dict[str, float] = {}
        for key, (kind, numbers) in self.values.items():
            if kind == "histogram":
                result.update({f"{key}/{name}": value for name, value in _quantiles(numbers).items()})
            elif kind == "mean":
                if numbers[1]:
                    result[key] = numbers[0] / numbers[1]
            elif np.isfinite(numbers[0]) or kind == "total":
                result[key] = numbers[0]
        return result


def _quantiles(counts: list[float]) -> Mapping[str, float]:
    if not sum(counts):
        return {}
    share = np.cumsum(counts) / sum(counts)
    # the middle of the bin in which the quantile lies; the open bins at the ends give their finite edge
    middle = np.concatenate([EDGES[1:2], (EDGES[1:-2] + EDGES[2:-1]) / 2, EDGES[-2:-1]])
    wanted = (("p01", 0.01), ("p50", 0.5), ("p99", 0.99))
    return {name: round(float(middle[int(np.searchsorted(share, q - 1e-12))]), 6) + 0.0 for name, q in wanted}
