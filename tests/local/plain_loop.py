"""GRPO's update as anyone would write it down: padded rows, all logits, one loss over tokens; nothing of this package's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from trinity_core.algo.batch import TrainBatch
from trinity_core.builtins.models.causal import KeepFloat64


class PlainLoop:
    """A transformers model in ``dtype``. The policy is on its own data, so the ratio is 1 and its gradient that of ``logp``:
    the loss is ``-Σ advantage · logp / tokens`` over all action tokens, those without credit among them."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()
        self.dtype = dtype

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]

    def gradient(self, batch: TrainBatch) -> torch.Tensor:
        assert batch.advantage_N is not None
        lengths = np.diff(batch.offsets_B1)
        ids = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.int64)
        real = torch.zeros_like(ids)
        for row, length in enumerate(lengths):
            ids[row, :length] = torch.from_numpy(batch.tokens_T[batch.offsets_B1[row] :][:length].astype(np.int64))
            real[row, :length] = 1
        column_N = torch.from_numpy(batch.action_N - batch.offsets_B1[batch.row_N])
        row_N = torch.from_numpy(batch.row_N)
        self.model.zero_grad()
        with KeepFloat64() if self.dtype == torch.float64 else torch.enable_grad():
            logits = self.model(input_ids=ids, attention_mask=real).logits
        logits_NV = logits[row_N, column_N - 1] / torch.from_numpy(batch.temperature_N).to(self.dtype)[:, None]
        logp_N = torch.log_softmax(logits_NV, -1).gather(1, ids[row_N, column_N][:, None])[:, 0]
        advantage_N = torch.from_numpy(batch.advantage_N).to(self.dtype)
        (-(advantage_N * logp_N).sum() / batch.num_actions).backward()
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])

    def descend(self, batch: TrainBatch, lr: float, steps: int) -> Iterator[tuple[list[torch.Tensor], torch.Tensor]]:
        """Plain SGD: the weights before each step, and the gradient there."""
        for _ in range(steps):
            before, gradient = self.weights(), self.gradient(batch)
            yield before, gradient
            start = 0
            with torch.no_grad():
                for p in self.model.parameters():
                    p -= lr * gradient[start : start + p.numel()].view_as(p)
                    start += p.numel()
