"""What losses on preferences share: the implicit reward of both sides of a pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from trinity_core.algo.loss_batch import LossBatch


def implicit_rewards(batch: LossBatch, beta: float) -> dict[str, Tensor]:
    """``β Σ(logp − ref)`` over the action tokens of each side, per pair, unclamped (arXiv:2305.18290, eq. 5, without the term that
    both sides share): *chosen*, *rejected*, their *margin*, and as *accuracy* whether it is positive. All have shape (P,).

    The loss must need ``pairs`` and ``ref_logp``; reading what it does not name raises ``DataError``.
    """
    reward_B = beta * batch.seq_sum(batch.logp_N - batch.ref_logp_N)
    chosen_P, rejected_P = reward_B[batch.pairs[:, 0]], reward_B[batch.pairs[:, 1]]
    margin_P = chosen_P - rejected_P
    return {"margin": margin_P, "accuracy": margin_P > 0, "chosen": chosen_P, "rejected": rejected_P}
