"""Cutting: a lease into updates, an update into micro-batches; and the two numbers that do not depend on any cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.trie import Trie


def mini_batches(batch: TrainBatch, *, epochs: int = 1, mini_batches: int = 1) -> Iterator[TrainBatch]:
    """The updates of a step: ``epochs`` passes, each cut into ``mini_batches`` of whole groups, shuffled by (seed, step, epoch).

    One mini-batch keeps the order. With fewer groups than mini-batches there are fewer updates; none is empty.
    """
    groups, update = np.unique(batch.group_B), 0
    for epoch in range(epochs):
        order = groups
        if mini_batches > 1:
            order = np.random.default_rng((batch.seed, batch.step, epoch)).permutation(groups)
        for part in np.array_split(order, mini_batches):
            if len(part):
                rows = np.flatnonzero(np.isin(batch.group_B, part))
                yield _fresh(batch.select(rows), update)
                update += 1


def _fresh(batch: TrainBatch, update: int) -> TrainBatch:
    """A selection that is an update of its own: its weights are still to be counted."""
    return dataclasses.replace(
        batch, update=update, token_weight={}, sequence_weight={}, pair_weight={}, denominators={}
    )


def packed_tokens(batch: TrainBatch, rows: NDArray[np.int64], *, share: bool = True) -> int:
    """Tokens that a forward over these sequences computes: inputs that some prediction depends on, shared prefixes once
    (``share=False``: as often as they occur)."""
    return Trie(batch, share=share).cells(rows)


def cut(
    batch: TrainBatch,
    *,
    scope: str,
    max_tokens: int,
    rows: NDArray[np.int64] | None = None,
    trie: Trie | None = None,
) -> list[NDArray[np.int64]]:
    """Micro-batches of whole units of ``scope``, each of at most ``max_tokens`` computed tokens where its units allow it.

    ``rows``: only these sequences (all by default). ``trie``: what is shared (by default whatever begins alike). Units that
    begin alike stand together, a group stays together where it fits, a unit that is larger than the budget stands alone. The
    largest micro-batch comes first, so that a run which does not fit in memory says so at once. Every sequence is in exactly
    one.
    """
    trie = Trie(batch) if trie is None else trie
    taken, _ = trie.sorted(np.arange(len(batch)) if rows is None else rows)
    unit_B = batch.unit_B(scope)
    cuts: list[list[int]] = []
    open_cut: list[int] = []
    for group in _in_order(batch.group_B if scope != "batch" else unit_B, taken):
        if open_cut and trie.cells(open_cut + group) <= max_tokens:
            open_cut = open_cut + group
            continue
        if open_cut:
            cuts.append(open_cut)
            open_cut = []
        if trie.cells(group) <= max_tokens:
            open_cut = group
            continue
        for unit in _in_order(unit_B, group):
            if open_cut and trie.cells(open_cut + unit) > max_tokens:
                cuts.append(open_cut)
                open_cut = []
            open_cut = open_cut + unit
    if open_cut:
        cuts.append(open_cut)
    return [np.sort(np.asarray(one, dtype=np.int64)) for one in sorted(cuts, key=trie.cells, reverse=True)]


def plan(
    batch: TrainBatch,
    *,
    scope: str,
    max_tokens: int,
    direct: bool = True,
    rows: NDArray[np.int64] | None = None,
    share: bool = True,
) -> tuple[list[NDArray[np.int64]], bool]:
    """Micro-batches, and whether the two-pass form is needed: where a unit of several sequences does not fit in the budget
    (or the backend cannot do the direct form), cut between sequences and take two passes."""
    trie = Trie(batch, share=share)
    cuts = cut(batch, scope=scope, max_tokens=max_tokens, rows=rows, trie=trie)
    if direct and all(len(one) == 1 or trie.cells(one) <= max_tokens for one in cuts):
        return cuts, False
    return cut(batch, scope="sequence", max_tokens=max_tokens, rows=rows, trie=trie), True


def _in_order(unit_B: NDArray[Any], rows: Iterable[int]) -> list[list[int]]:
    """Rows of each unit, units by the first of theirs."""
    units: dict[int, list[int]] = {}
    for row in rows:
        units.setdefault(int(unit_B[row]), []).append(int(row))
    return list(units.values())


def predictor_N(batch: TrainBatch) -> NDArray[np.int64]:
    """Flat position whose logits predict each action token: the one before it. The shift is done here and nowhere else."""
    return batch.action_N - 1


def uniform_N(batch: TrainBatch) -> NDArray[np.float64]:
    """One number in [0, 1) per action token: a hash of (run seed, step, update, attempt key, position in the attempt).

    The same wherever the token lies: in any cut, order or rank.
    """
    state = np.zeros(batch.num_actions, dtype=np.uint64)
    for value in (batch.seed, batch.step, batch.update, batch.attempt_key_B[batch.row_N], batch.position_N):
        word = np.uint64(value & (2**64 - 1)) if isinstance(value, int) else value.astype(np.uint64)
        state = _splitmix64(state ^ word)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
