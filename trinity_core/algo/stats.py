"""Statistics of a training step: sums with counts, totals, extremes and a histogram, so that any cut merges to the same."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_core.errors import DataError


def _grid(place: NDArray[Any]) -> NDArray[np.float64]:
    """Nats at a place of the scale of log-ratios: 20 at ±80, 1e-5 apart around 0, by a sixth of themselves far out."""
    nats: NDArray[np.float64] = 1e-4 * np.sinh(place * (np.arcsinh(20.0 / 1e-4) / 80))
    return nats


CENTRES = _grid(np.arange(-80, 81))
"""Of the bins of log-ratios: what a quantile is read as, to a twelfth of itself or 1e-5 nats."""
EDGES = np.concatenate([[-np.inf], _grid(np.arange(-80, 80) + 0.5), [np.inf]])
"""Between them; fixed, so that histograms add up."""


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

    def ratios(self, key: str, log_ratios: NDArray[Any]) -> None:
        """Of ``exp(log_ratios)``, each clamped to ±20 inside: the mean at ``key``, and ``/min, /max, /p01, /p50, /p99``."""
        near = np.clip(log_ratios, -20.0, 20.0)
        self.mean(key, np.exp(near))
        self.least(f"{key}/min", np.exp(near))
        self.most(f"{key}/max", np.exp(near))
        self.values[f"{key}/histogram"] = ("histogram", np.histogram(near, EDGES)[0].astype(float).tolist())

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
                stem = key.removesuffix("/histogram")
                result.update({f"{stem}/{name}": float(np.exp(value)) for name, value in _quantiles(numbers).items()})
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
    wanted = (("p01", 0.01), ("p50", 0.5), ("p99", 0.99))
    return {name: float(CENTRES[int(np.searchsorted(share, q - 1e-12))]) for name, q in wanted}
