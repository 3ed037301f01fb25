"""The prefix trie: tokens that several sequences begin with, computed once.

A hidden state depends on the tokens up to its own and on nothing else, so it is the same for every sequence that begins with
them: a system prompt for all groups, a prompt for its attempts, the first words of answers that begin alike, a history
for its branches. Sorted by their tokens, sequences stand beside those they share the most with, and what a set of them shares
is what neighbours share.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo.batch import TrainBatch


def in_order(sequences: Sequence[NDArray[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of ``sequences`` in the order of their tokens, and how many tokens each has in common with the one before.

    >>> order, shared = in_order([np.array([1, 2, 7]), np.array([1, 1]), np.array([1, 2])])
    >>> order.tolist(), shared.tolist()
    ([1, 2, 0], [0, 1, 2])
    """
    keys = [tokens_T.astype(">u4").tobytes() for tokens_T in sequences]  # big-endian: bytes compare as tokens do
    order = sorted(range(len(sequences)), key=keys.__getitem__)
    shared = np.zeros(len(order), np.int64)
    for i, (before, after) in enumerate(itertools.pairwise(order), 1):
        size = min(len(sequences[before]), len(sequences[after]))
        differ = sequences[before][:size] != sequences[after][:size]
        shared[i] = int(differ.argmax()) if differ.any() else size
    return np.array(order, dtype=np.int64), shared


class Trie:
    """The sequences of a batch in the order of their tokens, as far as predictions depend on them.

    ``share=False``: nothing is shared, for a model that cannot. ``order_B`` are the batch's sequences, sorted;
    ``shared_B[i]`` is how many tokens the i-th of them has in common with the one before; ``need_B[b]`` is how many tokens of
    sequence b are input at all (the last token of an answer predicts nothing).
    """

    def __init__(self, batch: TrainBatch, *, share: bool = True) -> None:
        num = len(batch)
        self.need_B = np.zeros(num, np.int64)
        np.maximum.at(self.need_B, batch.row_N, batch.action_N - batch.offsets_B1[batch.row_N])
        starts_B = batch.offsets_B1[:-1]
        self.order_B = np.arange(num)
        self.shared_B = np.zeros(num, np.int64)
        if share and num:
            inputs = [batch.tokens_T[start : start + need] for start, need in zip(starts_B, self.need_B)]
            self.order_B, self.shared_B = in_order(inputs)
        self.rank_B = np.empty(num, np.int64)
        """Place of each sequence in ``order_B``."""
        self.rank_B[self.order_B] = np.arange(num)

    def sorted(self, rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """These sequences in the order of their tokens, and what each of them shares with the one before."""
        ranks = np.sort(self.rank_B[np.asarray(rows, dtype=np.int64)])
        shared = np.zeros(len(ranks), np.int64)
        if len(ranks) > 1:  # what two share is the least that any neighbours between them share
            shared[1:] = np.minimum.reduceat(self.shared_B[: ranks[-1] + 1], ranks[:-1] + 1)
        return self.order_B[ranks], shared

    def cells(self, rows: NDArray[Any]) -> int:
        """Tokens to compute for these sequences."""
        taken, shared = self.sorted(rows)
        return int(self.need_B[taken].sum() - shared.sum())
