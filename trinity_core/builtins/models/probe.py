"""Whether a model computes the same when a prefix is shared: asked of the model itself, once, on a dozen tokens."""

from __future__ import annotations

import contextlib

import torch

from trinity_core.builtins.models.causal import CausalLM

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Largest difference of hidden states that rounding explains, relative to the largest hidden state, by the dtype of the
narrowest matrix. (A mask that is ignored changes them by a tenth and more.)"""


def why_not_shared(model: CausalLM) -> str | None:
    """``None`` if rows with a block mask and restarted positions give the hidden states of plain rows; else what stands
    in the way: a window, a recurrence, an attention that makes its own mask."""
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
    mask = torch.tril(torch.ones(len(row), len(row), dtype=torch.bool))
    mask[7:, 4:7] = False
    device = model.device
    dtypes = {p.dtype for p in model.module.parameters() if p.is_floating_point()}
    if model.quantized:
        dtypes.add(model.compute)
    narrowest = min(dtypes, key=lambda dtype: dtype.itemsize)
    # without autocast where the weights allow it: the comparison is of masks, not of rounding
    recipe = model.recipe() if narrowest == torch.bfloat16 else contextlib.nullcontext()
    with torch.no_grad(), recipe:
        positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 4, 5]], device=device)
        shared = model.hidden(torch.tensor([row], device=device), positions, mask[None, None].to(device))[0]
        for answer, cells in ((answers[0], slice(4, 7)), (answers[1], slice(7, 9))):
            plain_row = prompt + answer
            plain = model.hidden(
                torch.tensor([plain_row], device=device), torch.arange(len(plain_row), device=device)[None], None
            )[0]
            worst = float((plain[4:] - shared[cells]).abs().max() / plain.abs().max())
            if not worst <= TOLERANCE[narrowest]:
                return (
                    f"{type(model.module).__name__} does not follow a block mask (hidden states differ by {worst:.0e})"
                )
    return None
