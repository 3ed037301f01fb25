"""The prompts of a wave as one flat row of cells, what they begin with alike computed once.

A cell is one token to compute; a prompt is a path of cells. Prompts are sorted, and what a set of neighbours shares becomes a
*run* of cells of its own, so a system prompt or examples in front of every question cost what one of them costs. Attention is
computed for several runs at once (a *section*), each with the keys of its own path: no padding enters any product with weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo.trie import in_order

WORTH = 8
"""Tokens that prompts must share, at least, to become a run of their own."""
JOIN = 4096
"""Products of query and key that padding may add to a section; starting another one costs as much."""


@dataclass(frozen=True)
class Section:
    """N runs whose attention is computed together: S queries, K keys each. Key column c stands at position c."""

    query_NS: NDArray[np.int64]
    """Cells of each run; its last one again where it is shorter."""
    position_NS: NDArray[np.int64]
    key_NK: NDArray[np.int64]
    """Cells of each run's path, from position 0; its last one again where it is shorter. A query at position p sees columns
    up to p."""


@dataclass(frozen=True)
class Layout:
    """T cells, and where the prompts are in them."""

    ids_T: NDArray[np.int64]
    position_T: NDArray[np.int64]
    sections: tuple[Section, ...]
    slot_T: NDArray[np.int64]
    """Where each cell stands among the queries of all sections, one section after the other."""
    paths: tuple[NDArray[np.int64], ...]
    """Cells of each prompt."""


def lay_out(prompts: Sequence[NDArray[np.int64]]) -> Layout:
    """Flat cells of ``prompts`` (each at least one token), in any order, duplicates too."""
    places, in_common = in_order(prompts)
    order, shared = places.tolist(), in_common.tolist()
    ordered = [prompts[i] for i in order]

    ids: list[NDArray[np.int64]] = []
    runs: list[tuple[NDArray[np.int64], int]] = []  # (path to the end of the run, first position)
    paths: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(prompts)
    size = 0
    waiting: list[tuple[int, int, NDArray[np.int64]]] = [(0, len(ordered), np.zeros(0, np.int64))]
    while waiting:
        begin, end, path = waiting.pop()
        if begin == end:
            continue
        depth = len(path)
        common = min([len(ordered[begin]), *shared[begin + 1 : end]])
        if end - begin == 1 or common == len(ordered[end - 1]) or common - depth >= WORTH:
            path = np.concatenate([path, np.arange(size, size + common - depth)])
            ids.append(ordered[begin][depth:common])
            size += common - depth
            if common > depth:
                runs.append((path, depth))
        while begin < end and len(ordered[begin]) == common == len(path):  # prompts that end here
            paths[order[begin]] = path
            begin += 1
        cuts = [begin, *(i for i in range(begin + 1, end) if shared[i] <= common), end]
        waiting.extend((a, b, path) for a, b in itertools.pairwise(cuts))

    ids_T = np.concatenate(ids)
    position_T = np.zeros(size, np.int64)
    for path, start in runs:
        position_T[path[start:]] = np.arange(start, len(path))
    sections = tuple(_section(group) for group in _grouped(runs))
    slot_T = np.zeros(size, np.int64)
    first = 0
    for section in sections:
        flat = section.query_NS.ravel()
        slot_T[flat[::-1]] = first + np.arange(len(flat))[::-1]  # of repeated cells the first
        first += len(flat)
    return Layout(ids_T, position_T, sections, slot_T, tuple(paths))


def _grouped(runs: list[tuple[NDArray[np.int64], int]]) -> list[list[tuple[NDArray[np.int64], int]]]:
    """Runs of similar shape together, long ones first."""
    groups: list[list[tuple[NDArray[np.int64], int]]] = []
    longest = work = 0
    for path, start in sorted(runs, key=lambda run: (run[1] - len(run[0]), -len(run[0]))):
        own = (len(path) - start) * len(path)
        if groups:
            queries, wider = len(groups[-1][0][0]) - groups[-1][0][1], max(longest, len(path))
            if queries * wider * (len(groups[-1]) + 1) - work - own <= JOIN:
                groups[-1].append((path, start))
                longest, work = wider, work + own
                continue
        groups.append([(path, start)])
        longest, work = len(path), own
    return groups


def _section(group: list[tuple[NDArray[np.int64], int]]) -> Section:
    most = max(len(path) - start for path, start in group)
    longest = max(len(path) for path, _ in group)
    columns = [np.minimum(start + np.arange(most), len(path) - 1) for path, start in group]
    return Section(
        np.stack([path[at] for (path, _), at in zip(group, columns)]),
        np.stack(columns),
        np.stack([path[np.minimum(np.arange(longest), len(path) - 1)] for path, _ in group]),
    )
