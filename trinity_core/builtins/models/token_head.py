"""Log-probabilities and entropies of action tokens, from the last hidden states of the positions that predict them.

Actions after the same words are predicted by one position, whose logits are computed once. No logits outlive their chunk: they
are computed again in backward, and their gradient is written down at once as what it is, tokens minus probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trinity_core.builtins.models.causal import CausalLM
from trinity_core.builtins.models.head import whole_tiles

CHUNK, STRIP = 512, 64
"""Positions whose products with the head exist at once, in the compute dtype (50 MB of bfloat16 at a vocabulary of 49,152); and of
these, whose logits do in float32 (13 MB, what a processor's cache holds)."""
OUTPUTS = frozenset({"logp", "entropy", "entropy_value"})


def fits(model: CausalLM, outputs: frozenset[str]) -> bool:
    """Whether these outputs of this model can be had here: what follows from a position's distribution and the token, of a
    head that is one matrix."""
    head = model.head
    plain = type(head) is nn.Linear and head.bias is None and head.weight.is_floating_point()
    return plain and outputs <= OUTPUTS


def positions(cell_N: NDArray[np.int64], temperature_N: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(an action of each position [U], position of each action [N]): actions predicted by one cell at one temperature share it.

    >>> positions(np.array([7, 3, 7]), np.array([1.0, 1.0, 1.0]))
    (array([1, 0]), array([1, 0, 1]))
    """
    _, first_U, row_N = np.unique(np.rec.fromarrays([cell_N, temperature_N]), return_index=True, return_inverse=True)
    return first_U, row_N.astype(np.int64)


def token_outputs(
    model: CausalLM,
    hidden_UH: Tensor,
    temperature_U: Tensor,
    token_N: Tensor,
    row_N: Tensor,
    outputs: frozenset[str],
    *,
    chunk: int = CHUNK,
) -> dict[str, Tensor]:
    """``logp`` and ``entropy`` [N] of log softmax(logits / T), in float32 (float64 for float64); ``entropy_value`` is the entropy
    without gradient. ``row_N``: the position that predicts each token."""
    entropy = bool(outputs & {"entropy", "entropy_value"})
    logp_N, entropy_U = TokenHead.apply(  # type: ignore[no-untyped-call]
        hidden_UH, model.head.weight, temperature_U, token_N, row_N, model.compute, entropy, chunk
    )
    found = {"logp": logp_N}
    if "entropy" in outputs:
        found["entropy"] = entropy_U[row_N]
    if "entropy_value" in outputs:
        found["entropy_value"] = entropy_U.detach()[row_N]
    return found


class TokenHead(torch.autograd.Function):
    """``logp = z - log Σ exp z`` and ``H = -Σ p logp`` of z = W h / T, a chunk of positions at a time.

    Backward: ``∂logp_n / ∂z = 1[token] - p`` and ``∂H / ∂z = -p (log p + H)``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_UH: Tensor,
        weight_VH: Tensor,
        temperature_U: Tensor,
        token_N: Tensor,
        row_N: Tensor,
        compute: torch.dtype,
        entropy: bool,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.float64 if compute == torch.float64 else torch.float32
        order_N = torch.argsort(row_N, stable=True)
        temperature_U = temperature_U.to(wide)
        logp_N = torch.empty(len(token_N), dtype=wide, device=hidden_UH.device)
        entropy_U = torch.zeros(len(hidden_UH), dtype=wide, device=hidden_UH.device)
        ctx.compute, ctx.chunk, ctx.wide = compute, chunk, wide
        with torch.autocast(hidden_UH.device.type, enabled=False):
            narrow_VH = weight_VH.to(compute)
            for begin in range(0, len(hidden_UH), chunk):
                products_CV = _products(hidden_UH[begin : begin + chunk], narrow_VH, compute)
                for start, strip_SV, these in _strips(products_CV, begin, row_N, order_N):
                    piece = slice(start, start + len(strip_SV))
                    logits_SV, e_SV, sum_S = _exponentials(strip_SV, temperature_U[piece], wide)
                    log_S, row_n = sum_S.log(), row_N[these] - start
                    logp_N[these] = logits_SV[row_n, token_N[these]] - log_S[row_n]
                    if entropy:
                        entropy_U[piece] = log_S - e_SV.mul_(logits_SV).sum(-1) / sum_S
        ctx.save_for_backward(hidden_UH, weight_VH, temperature_U, token_N, row_N, order_N, entropy_U)
        return logp_N, entropy_U

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, grad_entropy_U: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_UH, weight_VH, temperature_U, token_N, row_N, order_N, entropy_U = ctx.saved_tensors
        compute, chunk = ctx.compute, ctx.chunk
        of_entropy = grad_entropy_U is not None and bool((grad_entropy_U != 0).any())
        sum_U = torch.zeros_like(entropy_U).index_add_(0, row_N, grad_N)
        dhidden_UH = torch.empty_like(hidden_UH)
        dweight_VH = torch.zeros_like(weight_VH) if ctx.needs_input_grad[1] else None
        with torch.autocast(hidden_UH.device.type, enabled=False):
            narrow_VH = weight_VH.to(compute)
            for begin in range(0, len(hidden_UH), chunk):
                hidden_CH = hidden_UH[begin : begin + chunk].to(compute)
                products_CV = _products(hidden_CH, narrow_VH, compute)
                for start, strip_SV, these in _strips(products_CV, begin, row_N, order_N):
                    piece = slice(start, start + len(strip_SV))
                    logits_SV, dlogits_SV, sum_S = _exponentials(strip_SV, temperature_U[piece], ctx.wide)
                    if of_entropy:
                        assert grad_entropy_U is not None
                        logits_SV += (entropy_U[piece] - sum_S.log())[:, None]  # log p + H
                        logits_SV.mul_(grad_entropy_U[piece, None]).add_(sum_U[piece, None])
                        dlogits_SV.mul_(logits_SV).mul_(-1 / sum_S[:, None])
                    else:
                        dlogits_SV.mul_((-sum_U[piece] / sum_S)[:, None])
                    dlogits_SV.index_put_((row_N[these] - start, token_N[these]), grad_N[these], accumulate=True)
                    if bool((temperature_U[piece] != 1).any()):
                        dlogits_SV.div_(temperature_U[piece, None])
                    strip_SV.copy_(dlogits_SV)  # the products are not needed any more: their gradient takes their place
                rows = slice(begin, begin + len(hidden_CH))
                dhidden_UH[rows] = (whole_tiles(products_CV, compute) @ narrow_VH)[: len(hidden_CH)].to(
                    dhidden_UH.dtype
                )
                if dweight_VH is not None:
                    dweight_VH += products_CV.T @ hidden_CH
        return dhidden_UH, dweight_VH, None, None, None, None, None, None


def _products(hidden_CH: Tensor, narrow_VH: Tensor, compute: torch.dtype) -> Tensor:
    """W h [C, V] in the compute dtype."""
    return (whole_tiles(hidden_CH.to(compute), compute) @ narrow_VH.T)[: len(hidden_CH)]


def _strips(products_CV: Tensor, begin: int, row_N: Tensor, order_N: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(first position, its rows, actions that they predict) of each strip of a chunk that begins at position ``begin``."""
    sorted_N = row_N[order_N]
    for start in range(0, len(products_CV), STRIP):
        strip_SV = products_CV[start : start + STRIP]
        first, last = begin + start, begin + start + len(strip_SV)
        i, j = torch.searchsorted(sorted_N, torch.tensor([first, last], device=row_N.device)).tolist()
        yield first, strip_SV, order_N[i:j]


def _exponentials(products_SV: Tensor, temperature_S: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """(z - max z, e = exp of it, sums [S] of e) with z = products / T. Passes over a strip that stays in the cache are several
    times faster than the library's softmax over as many columns as a vocabulary has."""
    logits_SV = products_SV.to(wide, copy=True)
    if bool((temperature_S != 1).any()):
        logits_SV.div_(temperature_S[:, None])
    e_SV = logits_SV.sub_(logits_SV.amax(-1, keepdim=True)).exp()
    return logits_SV, e_SV, e_SV.sum(-1)
