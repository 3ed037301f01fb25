"""A Llama-like model as a sampler needs it: the same numbers as the transformers module, in fewer and larger steps.

Query, key and value are one product, gate and up are another; on the CPU their weights are kept in the compute dtype, for long
replies in the processor's own layout. Everything is rounded where autocast rounds it: products in the compute dtype,
norms, rotation, softmax and the residual stream in float32 (float64 all the way for float64).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trinity_core.builtins.models.causal import CausalLM

FAMILIES = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
"""Bodies whose layers are: norm, rotated attention, norm, gated SiLU."""
LONG = 24
"""New tokens from which weights are laid out for the processor: that costs as much as it saves in about 14 steps (SmolLM2-135M,
64 rows). In bfloat16 it changes no bit of the result; in float32 sums are rounded in another order."""

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [T, heads, d], k and v [T, kv heads, d]) to [T, heads · d], all in the compute dtype."""


def why_not_decoded(lm: CausalLM) -> str | None:
    """``None`` if :class:`Decoder` knows the family of ``lm``; else what stands in the way."""
    config, name = lm.module.config, type(lm.body).__name__
    if lm.device.type != "cpu":
        return f"it is on {lm.device.type}, and these steps are made for the CPU"
    if lm.peft is not None:
        return "it has adapters"
    if lm.quantized:
        return "its weights are in 4 bits"
    if name not in FAMILIES:
        return f"{name} is not among the families it knows ({', '.join(FAMILIES)})"
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"} or (
        getattr(config, "sliding_window", None) is not None
    ):
        return f"{name} has layers that see a window"
    if config.hidden_act != "silu":
        return f"{name} has the activation {config.hidden_act}"
    return None


class Product:
    """Linear layers that read the same input, as one product. In float32 and float64 the layers' own weights are used as they are, unless
    a copy was taken; in bfloat16 a copy, one matrix, where they are not one in bfloat16 already."""

    def __init__(self, layers: Sequence[nn.Linear], compute: torch.dtype) -> None:
        self.layers, self.compute = layers, compute
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        self._packed = self._aliased = False

    @property
    def widens(self) -> bool:
        """Whether it has at least twice as many outputs as inputs: in float32 only such products gain from the processor's layout."""
        return sum(layer.out_features for layer in self.layers) >= 2 * self.layers[0].in_features

    def drop(self) -> None:
        """Use the layers' own weights again."""
        self._weight = self._bias = None

    def pack(self) -> None:
        """Copy the layers' weights as they are now into the processor's own layout."""
        self._weight = None  # its memory goes first
        parts = [layer.weight.to(self.compute) for layer in self.layers]
        weight = torch.cat(parts) if len(parts) > 1 else parts[0].detach()
        biases = [layer.bias.to(self.compute) for layer in self.layers if layer.bias is not None]
        self._bias = torch.cat(biases) if biases else None
        self._packed = True
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, 64)

    def copies(self) -> Iterator[tuple[Tensor, Tensor]]:
        """What is still to be copied, as (into, from) of equal shapes: none where the layers' weights serve as they are. One call
        for all products copies faster than each by itself."""
        one, *more = self.layers
        aliased, self._aliased = self._aliased, not more and one.weight.dtype == self.compute
        if self._aliased:
            self._weight, self._bias, self._packed = one.weight.detach(), one.bias, False  # as good as a copy
            return
        if self._weight is None or self._packed or aliased:
            size = sum(layer.out_features for layer in self.layers)
            self._weight = None  # its memory goes first
            self._bias = None if one.bias is None else one.bias.new_empty(size, dtype=self.compute)
            self._weight = one.weight.new_empty(size, one.in_features, dtype=self.compute)
            self._packed = False
        start = 0
        for layer in self.layers:
            rows = slice(start, start := start + layer.out_features)
            yield self._weight[rows], layer.weight.detach()
            if self._bias is not None:
                yield self._bias[rows], layer.bias.detach()

    def __call__(self, x_TI: Tensor) -> Tensor:
        if self._weight is None:
            parts = [F.linear(x_TI, layer.weight, layer.bias) for layer in self.layers]
            return torch.cat(parts, -1) if len(parts) > 1 else parts[0]
        if not self._packed:
            return F.linear(x_TI, self._weight, self._bias)
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x_TI, self._weight, self._bias, "none", [], "")
        return found


@dataclass(frozen=True)
class _Layer:
    before: nn.Module
    qkv: Product
    q_norm: nn.Module | None
    k_norm: nn.Module | None
    out: Product
    between: nn.Module
    gate_up: Product
    down: Product


class Decoder:
    """The weights of ``lm``, and one pass over flat tokens. Called under ``no_grad`` and outside autocast."""

    def __init__(self, lm: CausalLM) -> None:
        self.lm, self.compute = lm, lm.compute
        config, body = lm.module.config, lm.body
        attention = body.layers[0].self_attn
        self.heads, self.kv_heads, self.size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            attention.head_dim,
        )
        self.scale = float(attention.scaling)
        self.layers = [self._layer(layer) for layer in body.layers[: config.num_hidden_layers]]
        self.head = Product([lm.head], lm.compute)
        self._parameters = list(lm.module.parameters())
        self._state: Any = None
        self._seen: Tensor | None = None

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp, compute = layer.self_attn, layer.mlp, self.compute
        return _Layer(
            layer.input_layernorm,
            Product([attention.q_proj, attention.k_proj, attention.v_proj], compute),
            getattr(attention, "q_norm", None),
            getattr(attention, "k_norm", None),
            Product([attention.o_proj], compute),
            layer.post_attention_layernorm,
            Product([mlp.gate_proj, mlp.up_proj], compute),
            Product([mlp.down_proj], compute),
        )

    def refresh(self, delivery: int, *, long: bool, look: bool = True) -> None:
        """Copy the weights again where they may have changed since: another ``delivery``, a parameter with another version or
        place, and with ``look`` another value (64 of each are compared: the optimizer's fused step leaves no other trace).
        ``long``: whether many steps will use the copy (:data:`LONG`). In float32 only these take one, of what widens; in
        float64 there is none."""
        narrow = self.compute == torch.bfloat16
        packed = long and torch.backends.mkldnn.is_available() and self.compute != torch.float64
        packed = packed and (not narrow or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        if not (narrow or packed):
            if self._state is not None:
                for product in self._products():
                    product.drop()
                self._state = None
            return
        state = (delivery, packed, [(p._version, p.data_ptr()) for p in self._parameters])
        if state == self._state and not look:
            return
        seen = torch.cat([p.detach().flatten()[:: p.numel() // 64 + 1].to(self.wide) for p in self._parameters])
        if state == self._state and self._seen is not None and torch.equal(seen, self._seen):
            return
        self._state = None  # a copy that breaks off is none
        if packed:
            for product in self._products():
                if narrow or product.widens:
                    product.pack()
        else:  # in one call, during which other threads of Python may run
            held, own = zip(*(part for product in self._products() for part in product.copies()))
            torch._foreach_copy_(held, own)
        self._state, self._seen = state, seen

    def _products(self) -> Iterator[Product]:
        for layer in self.layers:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)
        yield self.head

    @property
    def wide(self) -> torch.dtype:
        """Dtype of what is not a product: float32, or float64 for float64."""
        return torch.float64 if self.compute == torch.float64 else torch.float32

    def hidden(self, ids_T: Tensor, position_T: Tensor, attend: Attend) -> Tensor:
        """Last hidden states [T, H]; ``attend`` knows which token sees which."""
        x_TH: Tensor = self.lm.body.embed_tokens(ids_T)
        with self.lm.recipe():
            cos, sin = self.lm.body.rotary_emb(x_TH, position_ids=position_T[None])
        half = self.size // 2
        cos_T1D = cos[0, :, None]
        sin_T1D = torch.cat([-sin[0, :, None, :half], sin[0, :, None, half:]], -1)  # the sign of the rotated half
        rotated = self.heads + self.kv_heads
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv(self._norm(x_TH, layer.before)).unflatten(-1, (-1, self.size))
            qk, v = qkv[:, :rotated], qkv[:, rotated:]
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = qk[:, : self.heads], qk[:, self.heads :]
                qk = torch.cat([self._head_norm(q, layer.q_norm), self._head_norm(k, layer.k_norm)], 1)
            qk = qk.to(self.wide)
            qk = (qk * cos_T1D).addcmul_(qk.roll(half, -1), sin_T1D).to(self.compute)
            seen_TH = attend(number, qk[:, : self.heads], qk[:, self.heads :], v)
            x_TH.add_(layer.out(seen_TH))
            gate_up = layer.gate_up(self._norm(x_TH, layer.between))
            width = gate_up.shape[-1] // 2
            x_TH.add_(layer.down(F.silu(gate_up[:, :width]).mul_(gate_up[:, width:])))
        return self._norm(x_TH, self.lm.body.norm)

    def logits(self, hidden_TH: Tensor, row_R: Tensor | None = None) -> Tensor:
        """Logits [T, V] in at least float32, from :meth:`hidden`; of these rows [R, V], once or more often."""
        logits_TV = self.head(hidden_TH).to(self.wide)
        return logits_TV if row_R is None else logits_TV.index_select(0, row_R)

    def _norm(self, x_TH: Tensor, norm: Any) -> Tensor:
        return F.rms_norm(x_TH, norm.weight.shape, norm.weight, norm.variance_epsilon).to(self.compute)

    def _head_norm(self, x_TND: Tensor, norm: Any) -> Tensor:
        """As the module has it: rounded to the products' dtype before the norm's own weight."""
        return (
            F.rms_norm(x_TND.to(self.wide), norm.weight.shape, None, norm.variance_epsilon).to(x_TND.dtype)
            * norm.weight
        )
