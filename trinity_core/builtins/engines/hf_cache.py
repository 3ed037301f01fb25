"""Keys and values of the rows in flight, with room to grow.

The library's dynamic cache copies everything at every token. Here a token is written in its place; a copy is made only
when the room is used up. Keys are kept in the compute dtype, in which attention reads them anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from trinity_core.builtins.models.causal import CausalLM

ROOM = 64
"""Tokens of room that a copy adds, at least; at most as much as there is already."""


class GrowingLayer(DynamicLayer):
    """One layer's keys and values: the filled front of two larger tensors."""

    def __init__(self, compute: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        self._room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append [R, heads, new, size] and return all there is."""
        new_keys, new_values = key_states.to(self.compute), value_states.to(self.compute)
        if not self.is_initialized:
            self.dtype, self.device, self.is_initialized = new_keys.dtype, new_keys.device, True
            self.keys, self.values = new_keys, new_values
            return self.keys, self.values
        filled = self.keys.shape[-2]
        total = filled + new_keys.shape[-2]
        if self._room is None or self._room[0].shape[-2] < total:
            size = total + max(ROOM, filled)
            self._room = (self._grown(self.keys, size), self._grown(self.values, size))
        keys, values = self._room
        keys[:, :, filled:total], values[:, :, filled:total] = new_keys, new_values
        self.keys, self.values = keys[:, :, :total], values[:, :, :total]
        return self.keys, self.values

    @staticmethod
    def _grown(old: Tensor, size: int) -> Tensor:
        rows, heads, filled, width = old.shape
        grown = old.new_empty(rows, heads, size, width)
        grown[:, :, :filled] = old
        return grown

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order, repeated where they are; room is made again when it is needed."""
        self._room = None
        super().batch_select_indices(indices)


def make_cache(lm: CausalLM) -> DynamicCache:
    """An empty cache for ``lm``; layers with a window or a state of their own keep the library's kind."""
    cache = DynamicCache(config=lm.module.config)
    compute = lm.compute if lm.compute == torch.bfloat16 else next(lm.module.parameters()).dtype
    cache.layers = [GrowingLayer(compute) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
