"""Log-probabilities and entropies of action tokens, from the last hidden states of the positions that predict them.

Actions after the same words are predicted by one position, whose logits are computed once. No logits outlive their chunk: they
are computed again in backward, and their gradient is written down at once as what it is, tokens minus probabilities.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trinity_core.builtins.models.causal import CausalLM
from trinity_core.builtins.models.head import CHUNK, whole_tiles

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
        ctx.compute, ctx.chunk = compute, chunk
        ctx.starts = torch.searchsorted(
            row_N[order_N], torch.arange(0, len(hidden_UH) + chunk, chunk, device=row_N.device)
        ).tolist()
        with torch.autocast(hidden_UH.device.type, enabled=False):
            narrow_VH = weight_VH.to(compute)
            for number, start in enumerate(range(0, len(hidden_UH), chunk)):
                piece = slice(start, start + chunk)
                logp_CV = torch.log_softmax(_logits(hidden_UH[piece], narrow_VH, temperature_U[piece], compute), -1)
                these = order_N[ctx.starts[number] : ctx.starts[number + 1]]
                logp_N[these] = logp_CV[row_N[these] - start, token_N[these]]
                if entropy:
                    entropy_U[piece] = torch.bmm(logp_CV.exp()[:, None], logp_CV[:, :, None])[:, 0, 0].neg_()
        ctx.save_for_backward(hidden_UH, weight_VH, temperature_U, token_N, row_N, order_N, entropy_U)
        return logp_N, entropy_U

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, grad_entropy_U: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_UH, weight_VH, temperature_U, token_N, row_N, order_N, entropy_U = ctx.saved_tensors
        compute = ctx.compute
        of_entropy = grad_entropy_U is not None and bool((grad_entropy_U != 0).any())
        sum_U = torch.zeros_like(entropy_U).index_add_(0, row_N, grad_N)
        dhidden_UH = torch.empty_like(hidden_UH)
        dweight_VH = torch.zeros_like(weight_VH) if ctx.needs_input_grad[1] else None
        with torch.autocast(hidden_UH.device.type, enabled=False):
            narrow_VH = weight_VH.to(compute)
            for number, start in enumerate(range(0, len(hidden_UH), ctx.chunk)):
                piece = slice(start, start + ctx.chunk)
                hidden_CH = hidden_UH[piece].to(compute)
                logits_CV = _logits(hidden_CH, narrow_VH, temperature_U[piece], compute)
                if of_entropy:
                    assert grad_entropy_U is not None
                    logp_CV = torch.log_softmax(logits_CV, -1)
                    factor_CV = (logp_CV + entropy_U[piece, None]).mul_(grad_entropy_U[piece, None])
                    dlogits_CV = logp_CV.exp_().mul_(factor_CV.add_(sum_U[piece, None])).neg_()
                else:
                    dlogits_CV = torch.softmax(logits_CV, -1).mul_(-sum_U[piece, None])
                these = order_N[ctx.starts[number] : ctx.starts[number + 1]]
                dlogits_CV.index_put_((row_N[these] - start, token_N[these]), grad_N[these], accumulate=True)
                if bool((temperature_U[piece] != 1).any()):
                    dlogits_CV.div_(temperature_U[piece, None])
                narrow_CV = dlogits_CV.to(compute)
                dhidden_UH[piece] = (whole_tiles(narrow_CV, compute) @ narrow_VH)[: len(hidden_CH)].to(hidden_UH.dtype)
                if dweight_VH is not None:
                    dweight_VH += narrow_CV.T @ hidden_CH
        return dhidden_UH, dweight_VH, None, None, None, None, None, None


def _logits(hidden_CH: Tensor, narrow_VH: Tensor, temperature_C: Tensor, compute: torch.dtype) -> Tensor:
    """Logits / T [C, V], at least float32."""
    logits_CV = (whole_tiles(hidden_CH.to(compute), compute) @ narrow_VH.T)[: len(hidden_CH)]
    logits_CV = logits_CV if logits_CV.dtype == torch.float64 else logits_CV.float()
    if bool((temperature_C != 1).any()):
        logits_CV = logits_CV / temperature_C[:, None]
    return logits_CV
