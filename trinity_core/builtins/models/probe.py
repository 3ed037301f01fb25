"""Whether a model computes the same when a prefix is shared: asked of the model itself, once, on a dozen tokens."""

from __future__ import annotations

import contextlib

import numpy as np
import torch

from trinity_core.builtins.models.causal import CausalLM
from trinity_core.builtins.models.packing import Block

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Largest difference of hidden states that rounding explains, relative to the largest hidden state, by the dtype of the
narrowest matrix. (A mask that is ignored changes them by a tenth and more.)"""


def why_not_shared(model: CausalLM) -> str | None:
    """``None`` if blocks of cells with restarted positions give the hidden states of plain rows; else what stands in the way: a
    window, a recurrence, an attention that makes its own mask."""
    config = model.module.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return f"{type(model.module).__name__} has layers of type {', '.join(sorted(kinds - {'full_attention'}))}"
    reach = getattr(config, "max_position_embeddings", None) or float("inf")
    for name in ("sliding_window", "attention_chunk_size"):  # longer than the probe: only the config knows
        window = getattr(config, name, None)
        if window and window < reach and not getattr(config, "layer_types", None):
            return f"{type(model.module).__name__} sees a window of {window} tokens ({name})"
    size = min(config.vocab_size, 1000)
    prompt = [1 % size, 5 % size, 9 % size, 7 % size]
    answers = [[11 % size, 3 % size, 2 % size], [8 % size, 6 % size]]
    row = prompt + answers[0] + answers[1]
    joined = np.tri(9, dtype=bool)
    joined[7:, 4:7] = False
    nothing = np.zeros(0, np.int64)
    layouts: list[tuple[Block, ...]] = []
    layouts.append((Block(0, 7, nothing, None), Block(7, 9, np.arange(4), None)))
    layouts.append((Block(0, 9, nothing, joined),))
    device = model.device
    dtypes = {p.dtype for p in model.module.parameters() if p.is_floating_point()}
    if model.quantized:
        dtypes.add(model.compute)
    narrowest = min(dtypes, key=lambda dtype: dtype.itemsize)
    # without autocast where the weights allow it: the comparison is of masks, not of rounding
    recipe = model.recipe() if narrowest in (torch.bfloat16, torch.float64) else contextlib.nullcontext()
    with torch.no_grad(), recipe:
        plain = []
        for answer in answers:
            ids = torch.tensor([prompt + answer], device=device)
            plain.append(model.hidden(ids, torch.arange(ids.shape[1], device=device)[None], None)[0])
        positions = torch.tensor([0, 1, 2, 3, 4, 5, 6, 4, 5], device=device)
        for blocks in layouts:
            try:
                shared = model.hidden_of_blocks(torch.tensor(row, device=device), positions, blocks)
            except (TypeError, ValueError, RuntimeError) as error:
                return f"{type(model.module).__name__} cannot compute blocks of cells ({str(error).splitlines()[0]})"
            for rows, cells in zip(plain, (slice(4, 7), slice(7, 9))):
                worst = float((rows[4:] - shared[cells]).abs().max() / rows.abs().max())
                if not worst <= TOLERANCE[narrowest]:
                    return f"{type(model.module).__name__} does not keep to blocks of cells (hidden states differ by {worst:.0e})"
    return None
