"""The prefix forest: which sequences begin with the same tokens, so that these can be computed once.

A sequence's prefix is never longer than the position of its first action token. So every action token is a sequence's own,
and the only prediction taken from shared positions is that of a first action, by the position before it: its hidden state
depends on the tokens up to it and on nothing else, hence is the same for every sequence that shares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def ranges(starts: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.int64]:
    """``[s0, s0+1, …, s1, s1+1, …]``: ``counts[i]`` numbers from each ``starts[i]``.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64) if len(counts) else np.zeros(0, np.int64)
    return (np.repeat(np.asarray(starts) - before, counts) + np.arange(int(np.sum(counts)))).astype(np.int64)


def common_prefix(left_T: NDArray[Any], right_T: NDArray[Any], limit: int) -> int:
    """Length of the longest common prefix, at most ``limit``.

    >>> common_prefix(np.array([1, 2, 3]), np.array([1, 2, 4]), 9)
    2
    """
    size = min(len(left_T), len(right_T), limit)
    differ = left_T[:size] != right_T[:size]
    return int(differ.argmax()) if differ.any() else size


def grow(sequences: Sequence[NDArray[Any]], first_action_B: Sequence[int]) -> tuple[list[int], list[int]]:
    """Parents and prefix lengths of the sequences of one group: the longest shared prefix, the earliest on a tie.

    >>> grow([np.array([1, 2, 7]), np.array([1, 2, 8]), np.array([1, 2, 8, 9, 5])], [2, 2, 4])
    ([-1, 0, 1], [0, 2, 3])
    """
    parents, lengths = [], []
    for row, (tokens_T, limit) in enumerate(zip(sequences, first_action_B)):
        parent, length = -1, 0
        for other in range(row):
            shared = common_prefix(sequences[other], tokens_T, limit)
            if shared > length:
                parent, length = other, shared
            if length == limit:
                break
        parents.append(parent)
        lengths.append(length)
    return parents, lengths


def regrow(
    parent_B: NDArray[np.int64],
    prefix_len_B: NDArray[np.int64],
    first_action_B: NDArray[np.int64],
    length_B: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The forest of a selection, without looking at tokens: two sequences share what both share with a common ancestor."""
    parents = np.full(len(rows), -1, dtype=np.int64)
    lengths = np.zeros(len(rows), dtype=np.int64)
    placed: dict[int, list[tuple[int, int]]] = {}  # ancestor -> (new row, tokens it shares with that ancestor)
    for new, row in enumerate(rows.tolist()):
        limit = int(first_action_B[row])
        ancestor, shared = row, int(length_B[row])
        while ancestor >= 0:
            for other, theirs in placed.get(ancestor, ()):
                if min(shared, theirs, limit) > lengths[new]:
                    parents[new], lengths[new] = other, min(shared, theirs, limit)
            placed.setdefault(ancestor, []).append((new, shared))
            shared, ancestor = min(shared, int(prefix_len_B[ancestor])), int(parent_B[ancestor])
    return parents, lengths
