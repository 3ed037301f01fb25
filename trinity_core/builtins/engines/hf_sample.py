"""Drawing the next token of each row, from logits and one uniform number per row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trinity_core.errors import RunError
from trinity_core.types import Sampling

BLOCK = 256
"""Tokens whose probabilities are summed together before the one block that holds the drawn token is searched."""


def draw(logits_RV: Tensor, uniform_R: Tensor, samplings: Sequence[Sampling]) -> tuple[Tensor, Tensor]:
    """(token, log-probability) of each row.

    The token is the inverse of the cumulative distribution at ``uniform_R``: the first whose cumulative sum exceeds ``uniform ·
    total``. Probabilities are rounded to the dtype of the logits, each to a few units in its last place; their sums are
    float64, so a border between two tokens stands where float64 addition puts it. Temperature 0 takes the likeliest. The
    log-probability is log softmax(logits / T) at the token, before top-k and top-p (T = 1 for greedy).

    Raises :class:`RunError` where the logits are not finite.
    """
    device = logits_RV.device
    temperatures = [s.logp_temperature for s in samplings]
    if any(t != 1.0 for t in temperatures):
        rounded_R = torch.tensor(temperatures, dtype=torch.float32, device=device)  # as batches store it
        logits_RV = logits_RV / rounded_R.to(logits_RV.dtype)[:, None]
    highest_R, p_RV = logits_RV.amax(-1), torch.softmax(logits_RV, -1)
    sums_RB = _block_sums(p_RV)
    # p = exp(logit - highest) / s with an s that is rounded; the float64 sum of all p says what s should have been
    log_s_R = torch.log(sums_RB.sum(-1) / p_RV.amax(-1))
    if not bool(torch.isfinite(log_s_R).all()):
        raise RunError(
            "engine hf: the model gives logits that are not finite. The weights are broken: go back to a checkpoint before, with a lower optim.lr"
        )
    greedy = [i for i, s in enumerate(samplings) if s.greedy]
    if len(greedy) == len(samplings):
        token_R = logits_RV.argmax(-1)
    else:
        tight = [i for i, s in enumerate(samplings) if s.constrained and not s.greedy]
        if tight:
            p_RV[tight] = truncate(p_RV[tight].double(), [samplings[i] for i in tight]).to(p_RV.dtype)
            sums_RB[tight] = _block_sums(p_RV[tight])
        token_R = _inverse(p_RV, sums_RB, uniform_R.to(device))
        if greedy:
            token_R[greedy] = logits_RV[greedy].argmax(-1)
    above_R = logits_RV.gather(1, token_R[:, None])[:, 0].double() - highest_R.double()
    return token_R, (above_R - log_s_R).to(logits_RV.dtype)


def _block_sums(p_RV: Tensor) -> Tensor:
    """Float64 sums of :data:`BLOCK` neighbours each; the last block may be shorter."""
    whole = p_RV.shape[-1] // BLOCK * BLOCK
    sums_RB = p_RV[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1, dtype=torch.float64)
    if whole == p_RV.shape[-1]:
        return sums_RB
    return torch.cat([sums_RB, p_RV[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)], 1)


def _inverse(p_RV: Tensor, sums_RB: Tensor, uniform_R: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds ``uniform · total``: its block first, then the place in it."""
    cdf_RB = sums_RB.cumsum(-1)
    at_R1 = _below(uniform_R[:, None] * cdf_RB[:, -1:], cdf_RB[:, -1:])
    block_R1 = torch.searchsorted(cdf_RB, at_R1, right=True)
    before_R1 = torch.where(block_R1 > 0, cdf_RB.gather(1, (block_R1 - 1).clamp_(min=0)), 0.0)
    column_RI = block_R1 * BLOCK + torch.arange(BLOCK, device=p_RV.device)
    inside_RI = column_RI < p_RV.shape[-1]
    p_RI = p_RV.gather(1, column_RI.clamp(max=p_RV.shape[-1] - 1)).double()
    cdf_RI = torch.where(inside_RI, p_RI, 0.0).cumsum(-1)
    # a block's sum and its running sum may differ in the last place: what is left never exceeds the block
    return (block_R1 * BLOCK + torch.searchsorted(cdf_RI, _below(at_R1 - before_R1, cdf_RI[:, -1:]), right=True))[:, 0]


def _below(value: Tensor, limit: Tensor) -> Tensor:
    """``value``, or the largest number below ``limit``."""
    return torch.minimum(value, torch.nextafter(limit, torch.zeros_like(limit)))


def truncate(p_RV: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """The ``top_k`` likeliest, and of these the fewest whose mass reaches ``top_p``; the rest is 0. Not renormalized."""
    device, size = p_RV.device, p_RV.shape[-1]
    top_k = torch.tensor([min(s.top_k, size) if s.top_k > 0 else size for s in samplings], device=device)[:, None]
    top_p = torch.tensor([s.top_p for s in samplings], dtype=p_RV.dtype, device=device)[:, None]
    sorted_RV, order_RV = p_RV.sort(dim=-1, descending=True, stable=True)
    sorted_RV = torch.where(torch.arange(size, device=device) < top_k, sorted_RV, 0.0)
    before_RV = sorted_RV.cumsum(-1) - sorted_RV
    sorted_RV = torch.where(before_RV < top_p * sorted_RV.sum(-1, keepdim=True), sorted_RV, 0.0)
    return torch.zeros_like(p_RV).scatter_(1, order_RV, sorted_RV)
