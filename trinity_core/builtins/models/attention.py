"""Attention over blocks of cells (:mod:`.packing`), as transformers' models call it.

A model asks for its attention by name and passes on what it does not know, so a block layout reaches every layer as the
keyword ``blocks``. Without it everything is as in the library's ``sdpa``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from trinity_core.builtins.models.packing import Block

NAME = "trinity_blocks"
SMALL = 512 * 512
"""Products of query and key up to which a block on the CPU is multiplied out: there the library's kernel spends more on
starting than on computing, and from there on it wins."""
STEP, STACK = 32, 2**18
"""Small blocks whose sides are equal after rounding up to ``STEP`` are multiplied together, up to ``STACK`` products of query
and key, whose probabilities (9 MB for nine heads) stay in the cache."""


@dataclass(frozen=True)
class Large:
    """A :class:`~.packing.Block` for the library's kernel."""

    start: int
    stop: int
    before_K: Tensor
    see_QK: Tensor | None
    """True where a query sees a key; ``None``: causal, with nothing before."""


@dataclass(frozen=True)
class Stack:
    """B small blocks, each filled up to Q queries and K keys."""

    query_BQ: Tensor
    """Cells; where filled up, a block's first, again."""
    real_BQ: Tensor
    """1 for cells, 0 where filled up."""
    key_BK: Tensor
    bias_BQK: Tensor
    """0 where a query sees a key, -inf elsewhere."""


def place(blocks: Sequence[Block], device: torch.device, dtype: torch.dtype) -> list[Large | Stack]:
    """Blocks where the model is, made once per forward for all layers. ``dtype``: that of scores."""
    placed: list[Large | Stack] = []
    small: dict[tuple[int, int], list[Block]] = {}
    for block in blocks:
        queries, keys = block.stop - block.start, len(block.before_K) + block.stop - block.start
        if device.type == "cpu" and queries * keys <= SMALL:
            small.setdefault((-(-queries // STEP) * STEP, -(-keys // STEP) * STEP), []).append(block)
            continue
        see = None if keys == queries and block.mask_QK is None else torch.from_numpy(_sees(block)).to(device)
        placed.append(Large(block.start, block.stop, torch.from_numpy(block.before_K).to(device), see))
    for (queries, keys), alike in small.items():
        size = max(1, STACK // (queries * keys))
        placed += [_stack(alike[i : i + size], queries, keys, device, dtype) for i in range(0, len(alike), size)]
    return placed


def _sees(block: Block) -> NDArray[np.bool_]:
    """[Q, K]: True where a query sees a key."""
    if block.mask_QK is not None:
        return block.mask_QK
    queries, before = block.stop - block.start, len(block.before_K)
    return np.tri(queries, before + queries, before, dtype=bool)


def _stack(blocks: Sequence[Block], queries: int, keys: int, device: torch.device, dtype: torch.dtype) -> Stack:
    query_BQ = np.empty((len(blocks), queries), np.int64)
    real_BQ = np.zeros((len(blocks), queries), bool)
    key_BK = np.zeros((len(blocks), keys), np.int64)
    see_BQK = np.zeros((len(blocks), queries, keys), bool)
    for b, block in enumerate(blocks):
        size, seen = block.stop - block.start, _sees(block)
        query_BQ[b] = block.start
        query_BQ[b, :size] = np.arange(block.start, block.stop)
        real_BQ[b, :size] = True
        key_BK[b, : seen.shape[1]] = np.concatenate([block.before_K, query_BQ[b, :size]])
        see_BQK[b, :size, : seen.shape[1]] = seen
        see_BQK[b, size:, : seen.shape[1]] = seen[0]  # what fills up sees something, else it were NaN
    bias_BQK = torch.zeros(see_BQK.shape, dtype=dtype).masked_fill_(~torch.from_numpy(see_BQK), -math.inf)
    query, real, key = (torch.from_numpy(array) for array in (query_BQ, real_BQ, key_BK))
    return Stack(query.to(device), real.to(device), key.to(device), bias_BQK.to(device))


class BlockAttention(torch.autograd.Function):
    """``softmax(scale · q kᵀ) v`` over each block's keys. q [heads, T, d]; k, v [kv heads, T, d]; G query heads share a key head.

    Scores and probabilities are at least float32 and are computed again in backward: what is kept is q, k and v alone.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: list[Large | Stack], scale: float) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.blocks, ctx.scale = blocks, scale
        out = torch.empty_like(q)
        with torch.autocast(q.device.type, enabled=False):
            for block in blocks:
                if isinstance(block, Large):
                    here = slice(block.start, block.stop)
                    out[:, here] = _library(q[:, here], _keys(k, block), _keys(v, block), block, scale)
                else:
                    values = _taken(v, block.key_BK, len(k))
                    p = _probabilities(_taken(q, block.query_BQ, len(k)), _taken(k, block.key_BK, len(k)), block, scale)
                    found = _back(p.to(v.dtype) @ values, len(q), len(k), block.query_BQ)
                    real = block.real_BQ.flatten()
                    out.index_copy_(1, block.query_BQ.flatten()[real], found[:, real])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        wide = _wide(q.dtype)
        dq, dk, dv = (torch.zeros(x.shape, dtype=wide, device=x.device) for x in (q, k, v))
        with torch.autocast(q.device.type, enabled=False):
            for block in ctx.blocks:
                found: tuple[Tensor, ...]
                if isinstance(block, Stack):
                    found = _backward(q, k, v, grad, block, ctx.scale)
                    places = block.query_BQ.flatten(), block.key_BK.flatten(), block.key_BK.flatten()
                else:
                    here = torch.arange(block.start, block.stop, device=q.device)
                    found = _library_backward(q, k, v, grad, block, ctx.scale)
                    places = here, torch.cat([block.before_K, here]), torch.cat([block.before_K, here])
                for into, where, add in zip((dq, dk, dv), places, found):
                    into.index_add_(1, where, add.to(wide))
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


# --- small blocks, multiplied out ---------------------------------------------------------------------------------------


def _taken(x: Tensor, cells_BX: Tensor, kv: int) -> Tensor:
    """Of x [heads, T, d] the cells of each block: [B · kv heads, G · X, d]."""
    found = x.index_select(1, cells_BX.flatten()).view(kv, -1, *cells_BX.shape, x.shape[-1])
    return found.permute(2, 0, 1, 3, 4).reshape(cells_BX.shape[0] * kv, -1, x.shape[-1])


def _back(found: Tensor, heads: int, kv: int, cells_BX: Tensor) -> Tensor:
    """The other way: [heads, B · X, d]."""
    size, cells = cells_BX.shape
    return found.view(size, kv, heads // kv, cells, -1).permute(1, 2, 0, 3, 4).reshape(heads, size * cells, -1)


def _probabilities(q: Tensor, keys: Tensor, block: Stack, scale: float) -> Tensor:
    """[B · kv heads, G · Q, K], of queries and keys that are taken."""
    wide, (size, queries, num) = _wide(q.dtype), block.bias_BQK.shape
    scores = torch.matmul(q.to(wide).mul(scale), keys.to(wide).transpose(1, 2)).view(size, -1, queries, num)
    return torch.softmax(scores.add_(block.bias_BQK[:, None]), -1).view(len(q), -1, num)


def _backward(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, block: Stack, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As kernels do it: what exponentials depend on in at least float32, the other products in the compute dtype."""
    heads, kv, wide = len(q), len(k), _wide(q.dtype)
    queries, keys, values = _taken(q, block.query_BQ, kv), _taken(k, block.key_BK, kv), _taken(v, block.key_BK, kv)
    p = _probabilities(queries, keys, block, scale)
    real_BQ = block.real_BQ[:, None, None, :, None]
    taken = _taken(grad, block.query_BQ, kv).view(len(real_BQ), kv, -1, real_BQ.shape[3], grad.shape[-1])
    given = taken.mul_(real_BQ).view(queries.shape)  # what fills up has no part in any sum
    dp = torch.matmul(given.to(wide), values.to(wide).transpose(1, 2))
    ds = torch._softmax_backward_data(dp, p, -1, wide).mul_(scale).to(q.dtype)
    dvalues = p.to(q.dtype).transpose(1, 2) @ given.to(q.dtype)
    dkeys = ds.transpose(1, 2) @ queries
    return (
        _back(ds @ keys, heads, kv, block.query_BQ),
        _back(dkeys, kv, kv, block.key_BK),
        _back(dvalues, kv, kv, block.key_BK),
    )


# --- large blocks, by the library's kernel ------------------------------------------------------------------------------


def _keys(x: Tensor, block: Large) -> Tensor:
    """Keys (or values) of a block [kv heads, K, d]."""
    own = x[:, block.start : block.stop]
    return torch.cat([x.index_select(1, block.before_K), own], 1) if len(block.before_K) else own


def _library(q: Tensor, keys: Tensor, values: Tensor, block: Large, scale: float) -> Tensor:
    """No score outlives it."""
    group = q.shape[0] // keys.shape[0]
    keys, values = (x.repeat_interleave(group, 0)[None] for x in (keys, values))
    return scaled_dot_product_attention(
        q[None], keys, values, attn_mask=block.see_QK, is_causal=block.see_QK is None, scale=scale
    )[0]


def _library_backward(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, block: Large, scale: float) -> tuple[Tensor, ...]:
    here = slice(block.start, block.stop)
    leaves = [x.detach().requires_grad_() for x in (q[:, here], _keys(k, block), _keys(v, block))]
    with torch.enable_grad():
        out = _library(leaves[0], leaves[1], leaves[2], block, scale)
    return torch.autograd.grad(out, leaves, grad[:, here])


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
