"""Decoder layers of Llama-like models in fewer passes over memory, for flat cells (:mod:`.packing`).

The library's layers read and write every activation several times over, in float32, and keep most of the copies for backward.
Here a norm, a rotation and a gated activation are one function each, which hands its result on in the compute dtype and keeps its input
alone. Linear layers stay the module's own, adapters and 4-bit matrices among them. Without blocks a layer is the library's, and
:mod:`.probe` compares the two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
"""Layers that are: norm, rotated attention, norm, gated SiLU."""


def compute_dtype(x: Tensor) -> torch.dtype:
    """What products are computed in: autocast's dtype, else that of ``x``."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class Norm(torch.autograd.Function):
    """``y = w · x / sqrt(mean x² + ε)`` over the last axis (arXiv:1910.07467), handed on in ``dtype``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        scale = torch.rsqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(epsilon))
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        grad = grad.to(x.dtype)
        normed = x * scale
        along = (grad * normed).flatten(0, -2)  # before the weight: its sum over rows is the weight's gradient
        dweight = along.sum(0) if ctx.needs_input_grad[1] else None
        inner = (along @ weight.to(x.dtype)).view(scale.shape).div_(x.shape[-1])
        dx = (grad * weight).sub_(normed.mul_(inner)).mul_(scale)
        return dx, dweight, None, None


class Rotation(torch.autograd.Function):
    """Halves (a, b) of the last axis to (a cos - b sin, b cos + a sin), handed on in ``dtype``. ``x`` [heads, T, d]; ``cos``, ``sin``
    [T, d/2]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.dtype = x.dtype
        return _rotated(x, cos, sin, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotated(grad, cos, -sin, ctx.dtype), None, None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    half = x.shape[-1] // 2
    a, b = x[..., :half].to(cos.dtype), x[..., half:].to(cos.dtype)
    out[..., :half] = (a * cos).addcmul_(b, sin, value=-1.0)
    out[..., half:] = (b * cos).addcmul_(a, sin)
    return out


class Gate(torch.autograd.Function):
    """``silu(gate) · up``."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        dup = F.silu(gate).mul_(grad)
        return torch.ops.aten.silu_backward(grad * up, gate), dup


def lean(module: Any) -> None:
    """Let every layer of a family that is known here compute blocks of cells this way. Others are left as they are."""
    for layer in module.modules():
        if type(layer).__name__ in LAYERS and type(layer.mlp.act_fn).__name__ in ("SiLUActivation", "SiLU"):
            layer.forward = _forward_of(layer, layer.forward)


def _forward_of(layer: Any, library: Any) -> Any:
    def forward(hidden_states: Tensor, *arguments: Any, blocks: Any = None, **more: Any) -> Any:
        if blocks is None:
            return library(hidden_states, *arguments, **more)
        return _layer(layer, hidden_states, more["position_embeddings"], blocks)

    return forward


def _layer(layer: Any, x_1TH: Tensor, position: tuple[Tensor, Tensor], blocks: Any) -> Tensor:
    from trinity_core.builtins.models.attention import BlockAttention

    attention, mlp, dtype = layer.self_attn, layer.mlp, compute_dtype(x_1TH)
    normed = _norm(layer.input_layernorm, x_1TH, dtype)
    heads = (x_1TH.shape[1], -1, attention.head_dim)
    q, k, v = (project(normed).view(heads) for project in (attention.q_proj, attention.k_proj, attention.v_proj))
    if hasattr(attention, "q_norm"):
        q, k = (
            _norm(norm, x.to(x_1TH.dtype), x_1TH.dtype) for norm, x in ((attention.q_norm, q), (attention.k_norm, k))
        )
    half = attention.head_dim // 2
    cos, sin = (part[0, :, :half] for part in position)
    q, k = (Rotation.apply(part.transpose(0, 1), cos, sin, dtype) for part in (q, k))  # type: ignore[no-untyped-call]
    out = BlockAttention.apply(q, k, v.transpose(0, 1).to(dtype), blocks, attention.scaling)  # type: ignore[no-untyped-call]
    x_1TH = x_1TH + attention.o_proj(out.transpose(0, 1).flatten(1)[None])
    normed = _norm(layer.post_attention_layernorm, x_1TH, dtype)
    gated = Gate.apply(mlp.gate_proj(normed), mlp.up_proj(normed))  # type: ignore[no-untyped-call]
    found: Tensor = x_1TH + mlp.down_proj(gated)
    return found


def _norm(norm: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    found: Tensor = Norm.apply(x, norm.weight, norm.variance_epsilon, dtype)  # type: ignore[no-untyped-call]
    return found
