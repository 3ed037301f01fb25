"""Drawing the next token of each row, from logits and one uniform number per row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trinity_core.errors import RunError
from trinity_core.types import Sampling


def draw(logits_RV: Tensor, uniform_R: Tensor, samplings: Sequence[Sampling]) -> tuple[Tensor, Tensor]:
    """(token, log-probability) of each row.

    The token is the inverse of the cumulative distribution at ``uniform_R``, summed in float64; temperature 0 takes the
    likeliest. The log-probability is log softmax(logits / T) at the token, before top-k and top-p (T = 1 for greedy).
    """
    device = logits_RV.device
    temperatures = [s.logp_temperature for s in samplings]
    if any(t != 1.0 for t in temperatures):
        rounded_R = torch.tensor(temperatures, dtype=torch.float32, device=device)  # as batches store it
        logits_RV = logits_RV / rounded_R.to(logits_RV.dtype)[:, None]
    total_R = torch.logsumexp(logits_RV, -1)
    if not bool(torch.isfinite(total_R).all()):
        raise RunError(
            "engine hf: the model gives logits that are not finite. The weights are broken: go back to a checkpoint before, with a lower optim.lr"
        )
    greedy = [s.greedy for s in samplings]
    if all(greedy):
        token_R = logits_RV.argmax(-1)
    else:
        p_RV = (logits_RV.double() - total_R.double()[:, None]).exp_()
        tight = [i for i, s in enumerate(samplings) if s.constrained]
        if tight:
            p_RV[tight] = truncate(p_RV[tight], [samplings[i] for i in tight])
        cdf_RV = p_RV.cumsum_(-1)
        whole_R1 = cdf_RV[:, -1:]
        at_R1 = torch.minimum(
            uniform_R.to(device)[:, None] * whole_R1, torch.nextafter(whole_R1, torch.zeros_like(whole_R1))
        )
        token_R = torch.searchsorted(cdf_RV, at_R1, right=True)[:, 0]
        if any(greedy):
            token_R = torch.where(torch.tensor(greedy, device=device), logits_RV.argmax(-1), token_R)
    return token_R, logits_RV.gather(1, token_R[:, None])[:, 0] - total_R


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
