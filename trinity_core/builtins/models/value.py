"""A value model: the body of a language model with a head of one number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trinity_core.builtins.models.causal import CausalLM


class ValueModel(CausalLM):
    """``V = w · h + b``: the value before each action token, from the hidden state that predicts it. ``w`` and ``b`` start
    at 0 and stay in the master dtype; products with them are never narrowed, so values have the precision of rewards."""

    def __init__(self, module: Any, folder: Path, device: torch.device, compute: torch.dtype, peft: Any = None) -> None:
        super().__init__(module, folder, device, compute, peft)
        master = torch.float64 if compute == torch.float64 else torch.float32
        self.value_head = nn.Linear(self.head.in_features, 1, device=device, dtype=master)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        self.head = nn.Identity()  # a matrix of the whole vocabulary would be held, and saved, for nothing
        module.set_output_embeddings(self.head)

    def value(self, hidden_NH: Tensor) -> Tensor:
        """Values [N]. A row's is the same among any others: it is summed by itself."""
        weight_1H, bias_1 = self.value_head.weight, self.value_head.bias
        with torch.autocast(self.device.type, enabled=False):
            return (hidden_NH.to(weight_1H.dtype) * weight_1H).sum(-1) + bias_1

    def trained(self) -> dict[str, nn.Parameter]:
        head = {f"value_head.{name}": parameter for name, parameter in self.value_head.named_parameters()}
        return super().trained() | head
