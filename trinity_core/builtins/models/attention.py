"""Attention over blocks of cells (:mod:`.packing`), as transformers' models call it.

A model asks for its attention by name and passes on what it does not know, so a block layout reaches every layer as the
keyword ``blocks``. Without it everything is as in the library's ``sdpa``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from trinity_core.builtins.models.packing import Block

NAME = "trinity_blocks"
SMALL = 512 * 512
"""Products of query and key up to which a block on the CPU is multiplied out: there the library's kernel spends more on
starting than on computing, and from there on it wins."""


@dataclass(frozen=True)
class DeviceBlock:
    """A :class:`~.packing.Block` where the model is: key indices, and what is added to the scores."""

    start: int
    stop: int
    before_K: Tensor
    see_QK: Tensor | None
    """True where a query sees a key; ``None``: causal, with nothing before."""
    bias_QK: Tensor | None
    """0 where a query sees a key, -inf elsewhere, for blocks that are multiplied out."""


def place(blocks: Sequence[Block], device: torch.device, dtype: torch.dtype) -> list[DeviceBlock]:
    """Blocks with their masks on ``device``, made once per forward for all layers. ``dtype``: that of scores."""
    placed = []
    for block in blocks:
        queries, keys = block.stop - block.start, len(block.before_K) + block.stop - block.start
        small = device.type == "cpu" and queries * keys <= SMALL
        see = None
        if block.mask_QK is not None:
            see = torch.from_numpy(block.mask_QK).to(device)
        elif small or keys > queries:
            see = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
        bias = torch.zeros(see.shape, dtype=dtype, device=device).masked_fill(~see, -math.inf) if small else None  # type: ignore[union-attr]
        before_K = torch.from_numpy(block.before_K).to(device)
        placed.append(DeviceBlock(block.start, block.stop, before_K, see, bias))
    return placed


class BlockAttention(torch.autograd.Function):
    """``softmax(scale · q kᵀ) v`` over each block's keys. q [heads, T, d]; k, v [kv heads, T, d]; G query heads share a key head.

    Scores and probabilities are at least float32 and are computed again in backward: what is kept is q, k and v alone.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: list[DeviceBlock], scale: float) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.blocks, ctx.scale = blocks, scale
        out = torch.empty_like(q)
        with torch.autocast(q.device.type, enabled=False):
            for block in blocks:
                here = slice(block.start, block.stop)
                keys, values = (_keys(x, block) for x in (k, v))
                if block.bias_QK is None:
                    out[:, here] = _library(q[:, here], keys, values, block, scale)
                else:
                    p = _probabilities(q[:, here], keys, block.bias_QK, scale)
                    out[:, here] = (p.flatten(1, 2).to(v.dtype) @ values).view(q.shape[0], -1, v.shape[-1])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        wide = _wide(q.dtype)
        dq, dk, dv = (torch.zeros(x.shape, dtype=wide, device=x.device) for x in (q, k, v))
        with torch.autocast(q.device.type, enabled=False):
            for block in ctx.blocks:
                here = slice(block.start, block.stop)
                keys, values = (_keys(x, block) for x in (k, v))
                found = (_library_backward if block.bias_QK is None else _backward)(
                    q[:, here], keys, values, grad[:, here], block, ctx.scale
                )
                dq[:, here] = found[0]
                for into, add in ((dk, found[1]), (dv, found[2])):
                    num = len(block.before_K)
                    into[:, here] += add[:, num:]
                    if num:
                        into.index_add_(1, block.before_K, add[:, :num].to(wide))
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _keys(x: Tensor, block: DeviceBlock) -> Tensor:
    """Keys (or values) of a block [kv heads, K, d]."""
    own = x[:, block.start : block.stop]
    return torch.cat([x.index_select(1, block.before_K), own], 1) if len(block.before_K) else own


def _grouped(x: Tensor, groups: int) -> Tensor:
    """[heads, Q, d] to [kv heads, G·Q, d]."""
    return x.reshape(groups, -1, x.shape[-1])


def _probabilities(q: Tensor, keys: Tensor, bias_QK: Tensor, scale: float) -> Tensor:
    """Probabilities [kv heads, G, Q, K]."""
    wide = _wide(q.dtype)
    scores = torch.matmul(_grouped(q.to(wide), len(keys)).mul(scale), keys.to(wide).transpose(1, 2))
    return torch.softmax(scores.unflatten(1, (-1, bias_QK.shape[0])).add_(bias_QK), -1)


def _backward(
    q: Tensor, keys: Tensor, values: Tensor, grad: Tensor, block: DeviceBlock, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As kernels do it: what exponentials depend on in at least float32, the other products in the compute dtype."""
    assert block.bias_QK is not None
    wide, groups = _wide(q.dtype), len(keys)
    p = _probabilities(q, keys, block.bias_QK, scale)
    grad = _grouped(grad, groups)
    dp = torch.matmul(grad.to(wide), values.to(wide).transpose(1, 2)).view_as(p)
    ds = torch._softmax_backward_data(dp, p, -1, wide).mul_(scale).flatten(1, 2).to(q.dtype)
    dvalues = p.flatten(1, 2).to(q.dtype).transpose(1, 2) @ grad.to(q.dtype)
    return (ds @ keys).view(q.shape), ds.transpose(1, 2) @ _grouped(q, groups), dvalues


def _library(q: Tensor, keys: Tensor, values: Tensor, block: DeviceBlock, scale: float) -> Tensor:
    """The library's kernel: no score outlives it."""
    group = q.shape[0] // keys.shape[0]
    keys, values = (x.repeat_interleave(group, 0)[None] for x in (keys, values))
    return scaled_dot_product_attention(
        q[None], keys, values, attn_mask=block.see_QK, is_causal=block.see_QK is None, scale=scale
    )[0]


def _library_backward(
    q: Tensor, keys: Tensor, values: Tensor, grad: Tensor, block: DeviceBlock, scale: float
) -> Sequence[Tensor]:
    leaves = [x.detach().requires_grad_() for x in (q, keys, values)]
    with torch.enable_grad():
        out = _library(leaves[0], leaves[1], leaves[2], block, scale)
    return torch.autograd.grad(out, leaves, grad)


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """What a layer calls: [1, heads, T, d] to [1, T, heads, d]. Keywords: ``scaling``, and ``blocks`` or all of the library's."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    blocks = more.pop("blocks", None)
    if blocks is None:
        found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
        return found
    if more.get("softcap") is not None or more.get("sliding_window") is not None or more.get("s_aux") is not None:
        raise ValueError("its attention has a soft cap, a window or sinks")
    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype
    scale = more.get("scaling") or query.shape[-1] ** -0.5
    out = BlockAttention.apply(query[0].to(dtype), key[0].to(dtype), value[0].to(dtype), blocks, scale)  # type: ignore[no-untyped-call]
    return out.transpose(0, 1)[None], None


def register() -> str:
    """Make the attention known to transformers; returns its name there."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME
