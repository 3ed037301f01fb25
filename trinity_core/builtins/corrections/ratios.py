"""Log-ratios between trainer and sampler that corrections weigh by: per token, and per sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity_core.algo import LossBatch


def token_log_ratio(batch: LossBatch) -> Any:
    """``old − sampler`` at each action token, a constant; 0 where nobody sampled the token. Shape (N,)."""
    return (batch.detach(batch.old_logp_N) - batch.sampler_logp_N).nan_to_num(nan=0.0)


def sequence_log_ratio(batch: LossBatch) -> Any:
    """``Σ_t (old − sampler)`` over the sampled tokens of each token's sequence, at each token. Shape (N,)."""
    return batch.spread(batch.seq_sum(token_log_ratio(batch)))
