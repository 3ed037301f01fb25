"""Prompts and steps through the transformers module itself: for every family, device and adapter that it knows.

The library's dynamic cache copies everything at every token. Here a token is written in its place; a copy is made only
when the room is used up. Keys are kept in the compute dtype, in which attention reads them anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from trinity_core.builtins.engines.hf_wave import Reply
from trinity_core.builtins.models.causal import CausalLM

ROOM = 64
"""Tokens of room that a copy adds, at least; at most as much as there is already."""
CROWDED = 0.75
"""Rows leave the batch, and the cache is compacted, once at most this share of it still runs."""


class ModuleBatch:
    """Rows in flight: their cache, and the mask of real tokens. ``model()`` gives the weights of the next step."""

    def __init__(self, model: Callable[[], CausalLM], live: list[Reply]) -> None:
        """Every different prompt once, padded on the left; then one row per request. A row that has finished stays until the
        batch is compacted."""
        self.model, self.live = model, live
        lm = model()
        place: dict[bytes, int] = {}
        prompt_of_R = [place.setdefault(r.request.tokens_T.astype(np.int64).tobytes(), len(place)) for r in live]
        prompts = [np.frombuffer(prompt, np.int64) for prompt in place]
        length = max(map(len, prompts))
        ids_PL = np.zeros((len(prompts), length), np.int64)
        mask_PL = np.zeros_like(ids_PL)
        for row, prompt in enumerate(prompts):
            ids_PL[row, length - len(prompt) :] = prompt
            mask_PL[row, length - len(prompt) :] = 1
        position_PL = np.maximum(mask_PL.cumsum(1) - 1, 0)
        ids, positions, mask = (torch.from_numpy(array).to(lm.device) for array in (ids_PL, position_PL, mask_PL))
        even = bool(mask_PL.all())
        rows = torch.tensor(prompt_of_R, device=lm.device)
        self.cache = make_cache(lm)
        with lm.recipe():
            hidden_PH = lm.hidden(ids, positions, None if even else mask, self.cache)[:, -1]
            self.logits_RV = lm.logits(hidden_PH)[rows]
        if len(prompts) != len(live) or prompt_of_R != list(range(len(live))):
            self.cache.batch_select_indices(rows)
        self.mask_RL = None if even else mask[rows]
        self.position_R = positions[rows, -1]
        self.token_R = torch.empty(0)

    def step(self) -> None:
        """One more token of every row that runs."""
        lm = self.model()
        running = [i for i, reply in enumerate(self.live) if reply.finish is None]
        if len(running) <= CROWDED * len(self.live):
            rows = torch.tensor(running, device=lm.device)
            self.cache.batch_select_indices(rows)
            self.live = [self.live[i] for i in running]
            self.mask_RL = None if self.mask_RL is None else self.mask_RL[rows]
            self.position_R, self.token_R = self.position_R[rows], self.token_R[rows]
        self.position_R = self.position_R + 1
        if self.mask_RL is not None:
            self.mask_RL = torch.cat([self.mask_RL, torch.ones_like(self.mask_RL[:, :1])], 1)
        with lm.recipe():
            hidden = lm.hidden(self.token_R[:, None], self.position_R[:, None], self.mask_RL, self.cache)
            self.logits_RV = lm.logits(hidden[:, -1])


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
