"""Sequences of a micro-batch as one flat row of cells, everything that begins alike computed once.

The trie of the sequences (:mod:`trinity_core.algo.trie`) is laid out depth first: a cell stands behind the cells that it sees, and
what a run of cells sees beside itself is the path that leads to its first. So attention is computed in *blocks* of
neighbouring cells, each with the keys of its own path before it: no padding, no mask of all cells by all cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.trie import Trie

JOIN = 4096
"""Products of query and key that a block of its own may cost more than its work, before it is joined to the one before."""


@dataclass(frozen=True)
class Block:
    """Cells ``start`` to ``stop`` (Q of them), and what they see."""

    start: int
    stop: int
    before_K: NDArray[np.int64]
    """Cells before ``start`` that are keys of the block too: the path to its first cell."""
    mask_QK: NDArray[np.bool_] | None
    """True where a cell sees a key: those of ``before_K``, then its own block's. ``None``: all before, and itself causally."""


@dataclass(frozen=True)
class Packed:
    """One forward pass over T cells."""

    ids_T: NDArray[np.int64]
    position_T: NDArray[np.int64]
    blocks: tuple[Block, ...]
    cell_N: NDArray[np.int64]
    """Cell whose output predicts each action token, in the batch's order."""


def pack(batch: TrainBatch, *, join: int = JOIN) -> Packed:
    """Lay out the trie of ``batch``. ``join``: see :data:`JOIN`."""
    trie = Trie(batch)
    order, shared = trie.sorted(np.arange(len(batch)))
    own = trie.need_B[order] - shared
    first = np.concatenate([[0], np.cumsum(own)]).astype(np.int64)
    path = np.zeros(0, np.int64)
    paths: list[NDArray[np.int64]] = [path] * len(batch)
    for row, begin, start, stop in zip(order.tolist(), shared.tolist(), first[:-1].tolist(), first[1:].tolist()):
        path = np.concatenate([path[:begin], np.arange(start, stop)])
        paths[row] = path
    ids_T, position_T = np.zeros(first[-1], np.int64), np.zeros(first[-1], np.int64)
    for row, begin, start, stop in zip(order.tolist(), shared.tolist(), first[:-1].tolist(), first[1:].tolist()):
        offset = batch.offsets_B1[row] + begin
        ids_T[start:stop] = batch.tokens_T[offset : offset + stop - start]
        position_T[start:stop] = np.arange(begin, begin + stop - start)
    place_N = batch.action_N - 1 - batch.offsets_B1[batch.row_N]
    starts = np.cumsum([0, *map(len, paths)])[:-1]
    flat = np.concatenate(paths) if paths else np.zeros(0, np.int64)
    cell_N = flat[starts[batch.row_N] + place_N] if len(place_N) else np.zeros(0, np.int64)
    runs = _joined(own, shared, first, join)
    return Packed(ids_T, position_T, tuple(_block(i, j, order, shared, first, paths) for i, j in runs), cell_N)


def _joined(
    own: NDArray[np.int64], shared: NDArray[np.int64], first: NDArray[np.int64], join: int
) -> list[tuple[int, int]]:
    """Runs of sequences (first, last + 1) whose cells are one block: the next one joins while that makes less work than a
    block of its own."""
    runs: list[list[int]] = []
    for i in range(len(own)):
        if not own[i]:
            if runs:
                runs[-1][1] = i + 1
            continue
        if runs:
            begin = runs[-1][0]
            before, cells = shared[begin], first[i] - first[begin]
            # together (cells + own) · (before + cells + own); apart cells · (before + cells) + own · (shared + own) + join
            if before + 2 * cells <= shared[i] + join / own[i]:
                runs[-1][1] = i + 1
                continue
        runs.append([i, i + 1])
    return [(begin, end) for begin, end in runs]


def _block(
    i: int,
    j: int,
    order: NDArray[np.int64],
    shared: NDArray[np.int64],
    first: NDArray[np.int64],
    paths: list[NDArray[np.int64]],
) -> Block:
    start, stop = int(first[i]), int(first[j])
    before_K = paths[order[i]][: shared[i]]
    filled = [k for k in range(i, j) if first[k + 1] > first[k]]
    if len(filled) == 1:
        return Block(start, stop, before_K, None)
    place = np.full(stop, -1, np.int64)  # of each cell among the keys
    place[before_K] = np.arange(len(before_K))
    place[start:stop] = len(before_K) + np.arange(stop - start)
    mask_QK = np.zeros((stop - start, len(before_K) + stop - start), dtype=bool)
    for k in filled:
        cells = np.arange(first[k], first[k + 1])
        mask_QK[np.ix_(cells - start, place[paths[order[k]][: shared[k]]])] = True
        here = slice(first[k] - start, first[k + 1] - start)
        mask_QK[here, len(before_K) + here.start : len(before_K) + here.stop] = np.tri(len(cells), dtype=bool)
    return Block(start, stop, before_K, mask_QK)


def plain_rows(batch: TrainBatch) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(ids [B, L], positions [B, L], flat cell of each action): one row per sequence, padded on the right, where a causal model
    does not see it."""
    need_B = Trie(batch, share=False).need_B
    width = int(need_B.max(initial=1))
    ids_BL = np.zeros((len(batch), width), np.int64)
    for row, need in enumerate(need_B.tolist()):
        ids_BL[row, :need] = batch.tokens_T[batch.offsets_B1[row] :][:need]
    position_BL = np.broadcast_to(np.arange(width), ids_BL.shape).copy()
    return ids_BL, position_BL, batch.row_N * width + batch.action_N - 1 - batch.offsets_B1[batch.row_N]
