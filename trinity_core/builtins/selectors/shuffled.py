"""Every row once, in a new order each time round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trinity_core.errors import ConfigError
from trinity_core.protocols import RunContext, Selector
from trinity_core.rollout.seeds import stable_hash
from trinity_core.types import Group


@dataclass(frozen=True)
class Shuffled(Selector):
    """A permutation of each taskset's rows, a new one each epoch; tasksets take turns by weight.

    What draw ``d`` plays depends on the run's seed, sizes and weights alone, so nothing has to be saved. Turns are
    those of smooth weighted round robin: at every moment each taskset is within one draw of its share.
    """

    def open(self, run: RunContext) -> LiveShuffled:
        return LiveShuffled(run.seed)


class LiveShuffled(Selector):
    """The turns so far, and the permutations in use: a memory of what can be computed again at any time."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._shares: dict[str, float] = {}
        self._credit: dict[str, float] = {}
        self._turns: list[tuple[str, int]] = []
        self._count: dict[str, int] = {}
        self._orders: dict[tuple[str, int], tuple[int, NDArray[np.int64]]] = {}

    def pick(
        self, draws: Sequence[int], sizes: Mapping[str, int], weights: Mapping[str, float]
    ) -> list[tuple[str, int]]:
        shares = {slot: float(weights.get(slot, 1.0)) for slot in sizes}
        if not any(weight > 0 for weight in shares.values()) or any(weight < 0 for weight in shares.values()):
            raise ConfigError(f"tasksets: weights must not be negative and one must be positive, got {shares}")
        if shares != self._shares:
            self._shares, self._credit = shares, dict.fromkeys(shares, 0.0)
            self._turns, self._count = [], dict.fromkeys(shares, 0)
        return [self._row(draw, sizes) for draw in draws]

    def observe(self, group: Group) -> None:
        """Pass rates change nothing here."""

    def _row(self, draw: int, sizes: Mapping[str, int]) -> tuple[str, int]:
        while len(self._turns) <= draw:
            self._turn()
        slot, turn = self._turns[draw]
        epoch, place = divmod(turn, sizes[slot])
        return slot, int(self._order(slot, epoch, sizes[slot])[place])

    def _turn(self) -> None:
        for slot, share in self._shares.items():
            self._credit[slot] += share
        slot = max((s for s in self._credit if self._shares[s] > 0), key=lambda s: self._credit[s])
        self._credit[slot] -= sum(self._shares.values())
        self._turns.append((slot, self._count[slot]))
        self._count[slot] += 1

    def _order(self, slot: str, epoch: int, size: int) -> NDArray[np.int64]:
        known = self._orders.get((slot, epoch))
        if known is None or known[0] != size:
            order = np.random.default_rng(stable_hash("shuffled", self._seed, slot, epoch)).permutation(size)
            self._orders = {key: value for key, value in self._orders.items() if key[0] != slot or key[1] == epoch - 1}
            self._orders[slot, epoch] = known = (size, order)
        return known[1]
