"""Adapters on their way from a trainer to an engine that holds the same base: a few megabytes instead of the model.

Beside the adapters travel two numbers, under names that no parameter has: their scale, and a digest of the base's files.
So a receiver that would add the same adapters to other weights, or by another measure, refuses them by name, and the
digest of a delivery covers all that it depends on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from trinity_core.algo.digest import digest_tensors
from trinity_core.builtins.models.causal import CausalLM
from trinity_core.errors import ModelError

ALPHA, BASE = "lora_alpha", "base_digest"


def base_digest(folder: Path) -> int:
    """Digest of the weights in a model folder, as they are stored (half a second for 135 million float32 weights)."""
    from safetensors import safe_open

    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            total += digest_tensors((name, opened.get_tensor(name)) for name in opened.keys())  # noqa: SIM118 - not a mapping
    return total % (1 << 64)


def adapters(lm: CausalLM) -> dict[str, Tensor]:
    """The adapters that ``lm`` computes with."""
    return {name: p.detach() for name, p in lm.module.named_parameters() if "lora_" in name}


def packed(lm: CausalLM, base: int) -> dict[str, Tensor]:
    """What is sent: the adapters, their alpha, the base's digest. Not a copy."""
    alpha = float(lm.peft.peft_config["default"].lora_alpha)
    signed = base - (1 << 64) if base >= 1 << 63 else base
    return adapters(lm) | {ALPHA: torch.tensor(alpha), BASE: torch.tensor(signed)}


def assign(lm: CausalLM, tensors: Mapping[str, Tensor], base: int, origin: str) -> None:
    """Take what :func:`packed` sent for the adapters of ``lm``. Raises :class:`ModelError` where it was made for another base,
    or is of another shape."""
    mine = packed(lm, base)
    for name, what in ((ALPHA, "model.lora.alpha"), (BASE, "digest of the base's weights")):
        if name not in tensors or tensors[name].item() != mine[name].item():
            raise ModelError(
                f"{origin}: its {what} is not that of {lm.folder}, so its adapters belong to another model. Trainer and engine need the same model.path and model.lora"
            )
    wrong = sorted(set(mine) ^ set(tensors)) or [name for name, t in tensors.items() if t.shape != mine[name].shape]
    if wrong:
        raise ModelError(
            f"{origin}: its adapters are not those of model.lora here: {', '.join(wrong[:3])}{' …' if len(wrong) > 3 else ''}. Trainer and engine need the same model.lora"
        )
    for name in adapters(lm):
        parent, _, leaf = name.rpartition(".")
        setattr(lm.module.get_submodule(parent), leaf, nn.Parameter(tensors[name].to(lm.device), requires_grad=False))
