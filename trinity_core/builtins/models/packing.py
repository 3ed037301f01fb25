"""Sequences of a micro-batch as rows for one forward pass, every shared prefix computed once.

A prefix tree (a prompt, its attempts, their branches) becomes one run of *cells*; a cell sees exactly the cells of its
own path, through a block mask, and its position is its place in the sequence. Trees are laid side by side into rows as
long as the longest tree. Only cells that some prediction depends on are kept: the last token of an answer is no input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo.batch import TrainBatch


@dataclass(frozen=True)
class Packed:
    """One forward pass. R rows, L cells each."""

    ids_RL: NDArray[np.int64]
    position_RL: NDArray[np.int64]
    mask_RLL: NDArray[np.bool_] | None
    """True where a cell (first L) sees a cell (second L); ``None``: plain causal rows."""
    cell_N: NDArray[np.int64]
    """Flat cell whose output predicts each action token, in the batch's order."""
    num_cells: int
    """Cells that are not padding."""


def pack(batch: TrainBatch, *, share: bool = True) -> Packed:
    """Lay out every sequence of ``batch``. ``share=False``: one row per sequence, nothing shared, no mask."""
    lengths_B = np.diff(batch.offsets_B1)
    num = len(lengths_B)
    parent_B = batch.parent_B if share else np.full(num, -1)
    prefix_B = np.where(parent_B >= 0, batch.prefix_len_B, 0)
    place_N = batch.action_N - 1 - batch.offsets_B1[batch.row_N]  # where its predictor stands in the sequence

    need_B = np.zeros(num, np.int64)  # tokens of each sequence that predictions depend on
    np.maximum.at(need_B, batch.row_N, place_N + 1)
    for b in range(num - 1, -1, -1):  # children stand behind their parents
        if parent_B[b] >= 0:
            need_B[parent_B[b]] = max(need_B[parent_B[b]], min(prefix_B[b], need_B[b]))

    # cells within each tree
    root_B, start_B = np.arange(num), np.zeros(num, np.int64)
    paths: list[NDArray[np.int64]] = []
    size = np.zeros(num, np.int64)
    for b in range(num):
        inherited = min(prefix_B[b], need_B[b])
        if parent_B[b] >= 0:
            root_B[b] = root_B[parent_B[b]]
        start_B[b] = size[root_B[b]]
        own = np.arange(start_B[b], start_B[b] + need_B[b] - inherited)
        paths.append(np.concatenate([paths[parent_B[b]][:inherited], own]) if inherited else own)
        size[root_B[b]] += len(own)

    roots = np.flatnonzero((root_B == np.arange(num)) & (size > 0))
    row_of, column_of, num_rows, width = _shelve(roots, size, single=not share)
    ids_RL = np.zeros((num_rows, width), np.int64)
    position_RL = np.zeros((num_rows, width), np.int64)
    chains = share is False or (len(roots) == num_rows and all(root_B == np.arange(num)))
    mask_RLL = None if chains else np.broadcast_to(np.eye(width, dtype=bool), (num_rows, width, width)).copy()
    for b in range(num):
        row, column = row_of[root_B[b]], column_of[root_B[b]]
        inherited = min(prefix_B[b], need_B[b])
        own = slice(column + start_B[b], column + start_B[b] + need_B[b] - inherited)
        first = batch.offsets_B1[b]
        ids_RL[row, own] = batch.tokens_T[first + inherited : first + need_B[b]]
        position_RL[row, own] = np.arange(inherited, need_B[b])
        if mask_RLL is not None:
            mask_RLL[row, own, own] = np.tri(own.stop - own.start, dtype=bool)
            mask_RLL[row, own, column + paths[b][:inherited]] = True

    flat = [row_of[root_B[b]] * width + column_of[root_B[b]] + paths[b] for b in range(num)]
    counts = np.bincount(batch.row_N, minlength=num)
    places = np.split(place_N, np.cumsum(counts)[:-1]) if num else []
    cell_N = np.concatenate([path[place] for path, place in zip(flat, places)]) if num else np.zeros(0, np.int64)
    return Packed(ids_RL, position_RL, mask_RLL, cell_N, int(size.sum()))


def _shelve(
    roots: NDArray[np.int64], size: NDArray[np.int64], *, single: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], int, int]:
    """Row and first column of each tree: longest first, into the first row with room; rows as wide as the longest tree."""
    width = int(size[roots].max(initial=1))
    row_of, column_of = np.zeros(len(size), np.int64), np.zeros(len(size), np.int64)
    used: list[int] = []
    for root in roots if single else roots[np.argsort(-size[roots], kind="stable")]:
        row = next((i for i, filled in enumerate(used) if not single and filled + size[root] <= width), len(used))
        if row == len(used):
            used.append(0)
        row_of[root], column_of[root] = row, used[row]
        used[row] += int(size[root])
    return row_of, column_of, max(len(used), 1), width
