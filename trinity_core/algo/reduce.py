"""How values become one number: the weight of each token, sequence and pair, counted on the host before dispatch.

The loss is ``Σ weight × value``, whatever the values are and wherever they are computed, so no backend counts anything.

======================= =============================================================
token_mean              1 / tokens in the update
seq_mean_token_mean     1 / (sequences × tokens of the sequence)
seq_mean_token_sum      1 / sequences
seq_mean_token_sum_norm 1 / (sequences × ``sampling.max_attempt_tokens``)
======================= =============================================================
"""

from __future__ import annotations

from typing import get_args

import numpy as np

from trinity_core.algo.batch import POPULATIONS, TrainBatch
from trinity_core.config.schema import Reduction
from trinity_core.errors import ConfigError

REDUCTIONS: tuple[str, ...] = get_args(Reduction)


def set_weights(
    batch: TrainBatch, reduction: str, *, by: str = "attempt", denominator: str = "all", max_attempt_tokens: int = 1
) -> None:
    """Fill ``token_weight``, ``sequence_weight``, ``pair_weight`` and ``denominators`` of one update, by population.

    ``by``: whether a sequence is an *attempt* (all its action tokens) or an *experience*. Per-sequence values are a mean over
    sequences in which an attempt of E experiences weighs as one. ``denominator``: whether dropped tokens (``keep_N`` False)
    count (*all*) or not (*kept*); their weight is 0 in any case. A sequence without a token that counts is in no mean;
    an empty population weighs 0.
    """
    if reduction not in REDUCTIONS:
        raise ConfigError(f"algorithm.reduction: {reduction!r} is unknown. Choose one of {', '.join(REDUCTIONS)}")
    if by not in ("attempt", "experience"):
        raise ConfigError(f"algorithm.by: {by!r} is unknown. Choose attempt or experience")
    if denominator not in ("all", "kept"):
        raise ConfigError(f"algorithm.denominator: {denominator!r} is unknown. Choose all or kept")
    rows = len(batch)
    unit_B = np.unique(batch.attempt_B, return_inverse=True)[1] if by == "attempt" else np.arange(rows)
    counts_N = batch.keep_N if denominator == "kept" else np.ones_like(batch.keep_N)
    kept_B = np.bincount(batch.row_N[batch.keep_N], minlength=rows) > 0
    chosen_P, rejected_P = batch.pairs_P2[:, 0], batch.pairs_P2[:, 1]
    for index, population in enumerate(POPULATIONS):
        member_B = np.ones(rows, dtype=np.bool_) if index == 0 else batch.population_B == index
        counted_N = counts_N & member_B[batch.row_N]
        tokens_B = np.bincount(batch.row_N[counted_N], minlength=rows)
        tokens_U = np.bincount(unit_B, tokens_B, minlength=rows)
        num_tokens, num_sequences = int(counted_N.sum()), int((tokens_U > 0).sum())
        scale_U = {
            "token_mean": np.full(rows, 1.0 / max(num_tokens, 1)),
            "seq_mean_token_mean": 1.0 / (max(num_sequences, 1) * np.maximum(tokens_U, 1)),
            "seq_mean_token_sum": np.full(rows, 1.0 / max(num_sequences, 1)),
            "seq_mean_token_sum_norm": np.full(rows, 1.0 / (max(num_sequences, 1) * max_attempt_tokens)),
        }[reduction]
        batch.token_weight[population] = np.where(counted_N & batch.keep_N, scale_U[unit_B[batch.row_N]], 0.0)

        counted_B = tokens_B > 0
        experiences_U = np.bincount(unit_B, counted_B, minlength=rows)
        share_B = 1.0 / (max(num_sequences, 1) * np.maximum(experiences_U[unit_B], 1))
        batch.sequence_weight[population] = np.where(counted_B & kept_B, share_B, 0.0)

        counted_P = counted_B[chosen_P] & counted_B[rejected_P]
        num_pairs = int(counted_P.sum())
        kept_P = kept_B[chosen_P] & kept_B[rejected_P]
        batch.pair_weight[population] = np.where(counted_P & kept_P, 1.0 / max(num_pairs, 1), 0.0)
        batch.denominators[population] = {"tokens": num_tokens, "sequences": num_sequences, "pairs": num_pairs}
