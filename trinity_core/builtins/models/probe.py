"""Whether a model computes the same when a prefix is shared: asked of the model itself, once, on a dozen tokens."""

from __future__ import annotations

import contextlib

import numpy as np
import torch
from torch import Tensor

from trinity_core.builtins.models.causal import CausalLM
from trinity_core.builtins.models.packing import Block

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Largest relative difference of hidden states that rounding explains, by the dtype of the narrowest matrix. In bfloat16, where 30
layers may make more of it, also a quarter of what answers that see each other would differ by."""


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
    # words from all over the vocabulary: what stands at its beginning is often special, and far from anything trained
    words = [7919 * (i + 1) % config.vocab_size for i in range(9)]
    prompt, answers = words[:4], [words[4:7], words[7:]]
    joined = np.tri(9, dtype=bool)
    joined[7:, 4:7] = False
    nothing = np.zeros(0, np.int64)
    layouts: list[tuple[Block, ...]] = []
    layouts.append((Block(0, 7, nothing, None), Block(7, 9, np.arange(4), None)))
    layouts.append((Block(0, 9, nothing, joined),))
    layouts.append((Block(0, 9, nothing, None),))  # wrong: the second answer sees the first
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
        found = []
        for blocks in layouts:
            try:
                found.append(model.hidden_of_blocks(torch.tensor(words, device=device), positions, blocks))
            except (TypeError, ValueError, RuntimeError) as error:
                return f"{type(model.module).__name__} cannot compute blocks of cells ({str(error).splitlines()[0]})"
    *right, wrong = [apart(hidden_TH, plain) for hidden_TH in found]
    limit = max(TOLERANCE[narrowest], wrong / 4 if narrowest == torch.bfloat16 else 0.0)
    if not max(right) <= limit:
        return (
            f"{type(model.module).__name__} computes other hidden states where answers share their prompt "
            f"(they differ by {max(right):.0e}, as they would by {wrong:.0e} if each saw the other)"
        )
    return None


def apart(hidden_TH: Tensor, plain: list[Tensor]) -> float:
    """How far both answers' hidden states are from those of plain rows: norm of the difference, relative; the larger one."""
    pairs = [(hidden_TH[4:7], plain[0][4:]), (hidden_TH[7:9], plain[1][4:])]
    return max(float((mine - theirs).norm() / theirs.norm()) for mine, theirs in pairs)
