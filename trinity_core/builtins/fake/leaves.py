"""The rows of a table as torch leaves, and the optimizer of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.cut import predictor_N
from trinity_core.builtins.fake.table import prefix_hashes, state_of
from trinity_core.config.schema import Optim
from trinity_core.errors import ConfigError

if TYPE_CHECKING:
    import torch


class Leaves:
    """The rows of the tables that a batch reads, as torch leaves: nothing else is copied or differentiated."""

    def __init__(
        self,
        batch: TrainBatch,
        logits_SV: NDArray[np.float64],
        value_S: NDArray[np.float64],
        *,
        gradient: bool = False,
        teacher_SV: NDArray[np.float64] | None = None,
    ) -> None:
        import torch

        self.teacher_SV = teacher_SV
        self.states = len(logits_SV)
        self.state_U = np.unique(self.state_N(batch))
        self.logits_UV = torch.from_numpy(logits_SV[self.state_U]).requires_grad_(gradient)
        self.value_U = torch.from_numpy(value_S[self.state_U]).requires_grad_(gradient)

    def state_N(self, batch: TrainBatch) -> NDArray[np.int64]:
        """The state that predicts each action token."""
        return state_of(prefix_hashes(batch.tokens_T, batch.offsets_B1)[predictor_N(batch)], self.states)

    def outputs(
        self, batch: TrainBatch, names: frozenset[str], vocabulary: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """The named arrays over the batch's action tokens, differentiable where the leaves are."""
        import torch

        place_N = torch.from_numpy(np.searchsorted(self.state_U, self.state_N(batch)))
        token_N = torch.from_numpy(batch.tokens_T[batch.action_N].astype(np.int64))
        temperature_N = torch.from_numpy(batch.temperature_N.astype(np.float64))
        logits_NV = self.logits_UV[place_N] / temperature_N[:, None]
        logp_NV = logits_NV.log_softmax(-1)
        found: dict[str, torch.Tensor] = {}
        for name in sorted(names):
            if name == "logp":
                found["logp"] = logp_NV.gather(1, token_N[:, None])[:, 0]
            elif name in ("entropy", "entropy_value"):
                seen_NV = logp_NV if name == "entropy" else logp_NV.detach()
                found[name] = -(seen_NV.exp() * seen_NV).sum(-1)
            elif name == "value":
                found["value"] = self.value_U[place_N]
            elif name.startswith("topk:"):
                top = logp_NV.topk(int(name.removeprefix("topk:")), dim=-1)
                found["topk_logp"], found["topk_ids"] = top.values, top.indices
            elif name.removeprefix("vocab:") in vocabulary:
                aux = {"token_C": token_N}
                aux |= {key: torch.from_numpy(array) for key, (array, axis) in batch.extras.items() if axis == "action"}
                if "teacher_hidden" in batch.measured and self.teacher_SV is not None:
                    teacher_NV = torch.from_numpy(self.teacher_SV[batch.measured["teacher_hidden"]])
                    aux["teacher_logits_CV"] = teacher_NV / temperature_N[:, None]
                found |= vocabulary[name.removeprefix("vocab:")](logits_NV, aux)
            else:
                raise ConfigError(
                    f"backend fake: output {name!r} is unknown. It gives logp, entropy, value, topk:K and the loss's own vocab:<name>"
                )
        return found

    def gradients(self) -> dict[str, NDArray[np.float64]]:
        """By trained model, over :attr:`state_U`; only what a gradient reached."""
        leaves = {"policy": self.logits_UV, "critic": self.value_U}
        return {name: leaf.grad.numpy() for name, leaf in leaves.items() if leaf.grad is not None}


class Adam:
    """AdamW (Loshchilov & Hutter 2019) over one array, in place; its gradient is clipped by norm."""

    def __init__(self, weight: NDArray[np.float64], optim: Optim, lr: float) -> None:
        self.weight, self.optim, self.lr = weight, optim, lr
        self.mean, self.square = np.zeros_like(weight), np.zeros_like(weight)
        self.updates = 0

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        return {"weight": self.weight, "mean": self.mean, "square": self.square}

    def step(self, rows: NDArray[np.int64], gradient: NDArray[np.float64], norm: float, lr_scale: float) -> float:
        """One step on a gradient that is 0 outside ``rows``; returns the share of weights that changed."""
        beta1, beta2 = self.optim.betas
        if self.optim.clip_norm is not None and norm > self.optim.clip_norm:
            gradient = gradient * (self.optim.clip_norm / norm)
        self.updates += 1
        self.mean *= beta1
        self.mean[rows] += (1 - beta1) * gradient
        self.square *= beta2
        self.square[rows] += (1 - beta2) * gradient**2
        before, lr = self.weight.copy(), self.lr * lr_scale
        if self.optim.weight_decay:
            self.weight *= 1 - lr * self.optim.weight_decay
        scale = np.sqrt(self.square / (1 - beta2**self.updates))
        scale += self.optim.eps
        self.weight -= (lr / (1 - beta1**self.updates)) * self.mean / scale
        return float((self.weight != before).mean())
