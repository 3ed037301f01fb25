"""Keys and values of the rows in flight, and the attention over them.

Rows whose prompts are about as long lie together in a *strip*: one tensor with the keys of all layers, one with the values. A row's columns are its
prompt, filled up to the longest of the strip, and then one for each step. A row that ends leaves at once: the last row of its
strip takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinity_core.builtins.engines.hf_decoder import Decoder
from trinity_core.builtins.engines.hf_prompts import Section, lay_out

ROOM = 64
"""Columns of room for new tokens, at first; each time they are used up there are as many more, or a quarter."""
SCORES = 1 << 22
"""Attention scores of a section of prompts that exist at once (16 MB in float32)."""
APART = 4096
"""Columns of padding, over all rows, that are worth a strip more: attention over so many costs what a strip costs."""


class Rows:
    """R rows of one wave. Their order is :attr:`order`, not the caller's."""

    def __init__(
        self, decoder: Decoder, prompts: Sequence[NDArray[np.int64]], prompt_of_R: Sequence[int], most: int
    ) -> None:
        """``prompt_of_R``: the prompt of each row, among ``prompts``; ``most``: new tokens of any row, at most. Nothing is computed
        yet."""
        self.decoder = decoder
        self.layout = lay_out(prompts)
        lengths = [len(prompts[prompt]) for prompt in prompt_of_R]
        self.order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        """The row, as ``prompt_of_R`` numbers them, that each place holds at first."""
        paths = [self.layout.paths[prompt_of_R[row]] for row in self.order]
        self.strips = [Strip(decoder, group, most) for group in _apart(paths)]
        self.position_R = torch.tensor([len(path) - 1 for path in paths])
        """Position of each row's last token."""

    def __len__(self) -> int:
        return len(self.position_R)

    def prefill(self) -> Tensor:
        """Compute every prompt; the last hidden state of each prompt [P, H]."""
        layout = self.layout
        placed = [_Placed(section, self.decoder) for section in layout.sections]
        slot_T = torch.from_numpy(layout.slot_T)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            for strip in self.strips:
                strip.fill(layer, k, v)
            seen = [section.attend(q, k, v) for section in placed]
            return (torch.cat(seen) if len(seen) > 1 else seen[0]).index_select(0, slot_T)

        ids_T, position_T = torch.from_numpy(layout.ids_T), torch.from_numpy(layout.position_T)
        hidden_TH = self.decoder.hidden(ids_T, position_T, attend)
        return hidden_TH.index_select(0, torch.tensor([int(path[-1]) for path in layout.paths]))

    def step(self, token_R: Tensor) -> Tensor:
        """One more token of every row; the last hidden states [R, H]."""
        for strip in self.strips:
            strip.advance()
        self.position_R = self.position_R + 1
        return self.decoder.hidden(token_R, self.position_R, self._attend)

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if len(self.strips) == 1:
            return self.strips[0].attend(layer, q, k, v)
        sizes = [strip.rows for strip in self.strips]
        parts = zip(self.strips, q.split(sizes), k.split(sizes), v.split(sizes))
        return torch.cat([strip.attend(layer, *qkv) for strip, *qkv in parts])

    def keep(self, running: Sequence[int]) -> list[int]:
        """Only these rows go on. Returns which row each place now holds: rows from the end of a strip take the places of those
        that left."""
        place: list[int] = []
        start = 0
        for strip in self.strips:
            stop = start + strip.rows
            place += [start + row for row in strip.keep([row - start for row in running if start <= row < stop])]
            start = stop
        self.strips = [strip for strip in self.strips if strip.rows]
        self.position_R = self.position_R[place]
        return place


class Strip:
    """Rows with one tensor of keys and one of values. ``paths``: the cells of their prompts."""

    def __init__(self, decoder: Decoder, paths: Sequence[NDArray[np.int64]], most: int) -> None:
        self.decoder, self.rows = decoder, len(paths)
        lengths_R = torch.tensor([len(path) for path in paths])
        self.filled = int(lengths_R.max())
        """Columns in use, the same for all rows."""
        self.most = self.filled + most
        columns = np.arange(self.filled)
        self._path_RL = torch.from_numpy(np.stack([path[np.minimum(columns, len(path) - 1)] for path in paths]))
        self._keys, self._values = self._room(min(self.most, self.filled + ROOM))
        size = self._keys.shape[3]
        self._bias = torch.zeros(1, 1, size, dtype=decoder.wide)
        """[R · kv heads or 1, 1, columns]: -inf where a row's prompt does not reach, and beyond the columns in use."""
        if int(lengths_R.min()) < self.filled:
            beyond_RL = torch.arange(size) >= lengths_R[:, None]
            bias_RL = torch.zeros(beyond_RL.shape, dtype=decoder.wide).masked_fill_(beyond_RL, -math.inf)
            self._bias = bias_RL.repeat_interleave(decoder.kv_heads, 0)[:, None]
        self._bias[..., self.filled :] = -math.inf

    def _room(self, columns: int) -> tuple[Tensor, Tensor]:
        """Keys and values [layer, row, kv head, column, d], not filled. Keys are kept wide: in bfloat16 the scores would lose what
        softmax needs."""
        d = self.decoder
        shape = (len(d.layers), self.rows, d.kv_heads, columns, d.size)
        return torch.empty(shape, dtype=d.wide), torch.empty(shape, dtype=d.compute)

    def fill(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Take a layer's keys and values of the prompts from those of all cells [T, kv heads, d]. Columns beyond are 0: products may
        go over them."""
        shape = (*self._path_RL.shape, *k.shape[1:])
        for kept, x in ((self._keys, k), (self._values, v)):
            found = x.index_select(0, self._path_RL.flatten()).view(shape)
            kept[layer, :, :, : self.filled] = found.transpose(1, 2)
            kept[layer, :, :, self.filled :] = 0

    def advance(self) -> None:
        """Make place for one more token of every row."""
        if self.filled == self._keys.shape[3]:
            wider = self._room(min(self.most, self.filled + max(ROOM, self.filled // 4)))
            for kept, old in zip(wider, (self._keys, self._values)):
                kept[..., : self.filled, :] = old[:, : self.rows]
                kept[..., self.filled :, :] = 0
            bias = self._bias.new_full((len(self._bias), 1, wider[0].shape[3]), -math.inf)
            bias[..., : self.filled] = self._bias
            (self._keys, self._values), self._bias = wider, bias
        self._bias[..., self.filled] = 0
        self.filled += 1

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[R, heads · d] of the newest column: q [R, heads, d]; its k and v [R, kv heads, d] are kept."""
        d = self.decoder
        keys, values = self._keys[layer, : self.rows], self._values[layer, : self.rows]
        keys[:, :, self.filled - 1], values[:, :, self.filled - 1] = k, v
        # products in bfloat16 copy what does not lie together: rather over all columns than over a copy of those in use
        columns = keys.shape[2] if d.compute == torch.bfloat16 else self.filled
        keys, values = keys.flatten(0, 1)[:, :columns], values.flatten(0, 1)[:, :columns]
        q = q.to(d.wide).reshape(len(keys), -1, d.size)
        scores = torch.baddbmm(self._bias[..., :columns], q, keys.transpose(1, 2), alpha=d.scale)
        return torch.bmm(torch.softmax(scores, -1).to(values.dtype), values).view(self.rows, -1)

    def keep(self, running: Sequence[int]) -> list[int]:
        """As :meth:`Rows.keep`, for the rows of this strip."""
        self.rows = len(running)
        place = list(range(self.rows))
        holes = sorted(set(place) - set(running))
        for hole, row in zip(holes, [row for row in running if row >= self.rows]):
            place[hole] = row
            for kept in (self._keys, self._values):
                kept[:, hole, :, : self.filled] = kept[:, row, :, : self.filled]
        if len(self._bias) > 1:
            self._bias = self._bias.unflatten(0, (-1, self.decoder.kv_heads))[place].flatten(0, 1)
        return place


def _apart(paths: Sequence[NDArray[np.int64]]) -> list[list[NDArray[np.int64]]]:
    """Paths, longest first, in strips: a new one where the padding it saves, over all rows behind, is worth it."""
    groups: list[list[NDArray[np.int64]]] = []
    for row, path in enumerate(paths):
        if not groups or (len(groups[-1][0]) - len(path)) * (len(paths) - row) >= APART:
            groups.append([])
        groups[-1].append(path)
    return groups


class _Placed:
    """A section's indices as tensors, made once for all layers."""

    def __init__(self, section: Section, decoder: Decoder) -> None:
        self.decoder = decoder
        self.query_NS, self.key_NK = torch.from_numpy(section.query_NS), torch.from_numpy(section.key_NK)
        runs, queries = self.query_NS.shape
        keys = self.key_NK.shape[1]
        step = max(1, SCORES // (runs * decoder.heads * keys))
        self.pieces: list[tuple[slice, int, Tensor]] = []  # (queries, keys that any of them sees, bias [N, 1, 1, S, K])
        position_NS = torch.from_numpy(section.position_NS)
        for start in range(0, queries, step):
            here = slice(start, min(start + step, queries))
            seen = int(position_NS[:, here].max()) + 1
            hidden_NSK = torch.arange(seen) > position_NS[:, here, None]
            bias = torch.zeros(hidden_NSK.shape, dtype=decoder.wide).masked_fill_(hidden_NSK, -math.inf)
            self.pieces.append((here, seen, bias[:, None, None]))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[N · S, heads · d], from flat q [T, heads, d], k and v [T, kv heads, d]."""
        d = self.decoder
        (runs, queries), groups = self.query_NS.shape, d.heads // d.kv_heads
        q_GD = q[self.query_NS].to(d.wide).view(runs, queries, d.kv_heads, groups, d.size).permute(0, 2, 3, 1, 4)
        keys, values = (x[self.key_NK].transpose(1, 2).to(d.wide) for x in (k, v))
        out = q.new_empty(runs, queries, d.kv_heads, groups, d.size)
        for here, seen, bias in self.pieces:
            scores = q_GD[:, :, :, here].flatten(2, 3) @ keys[:, :, :seen].transpose(2, 3)
            p = torch.softmax(scores.mul_(d.scale).unflatten(2, (groups, -1)).add_(bias), -1)
            seen_GS = (p.flatten(2, 3) @ values[:, :, :seen]).unflatten(2, (groups, -1))
            out[:, here] = seen_GS.permute(0, 3, 1, 2, 4).to(q.dtype)
        return out.view(runs * queries, -1)
