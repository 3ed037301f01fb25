"""A tiny causal model with a head and a value, for the tests of this folder: hidden state = tanh of a running mean."""

from __future__ import annotations

import numpy as np
import torch

from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.cut import predictor_N
from trinity_core.algo.loss_batch import OWN_NAMES
from trinity_core.algo.objective import Objective, accumulate
from trinity_core.builtins.losses.importance_sampling import ImportanceSampling
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.builtins.losses.sft import SFT
from trinity_core.testing.toys import TOY_LOSSES
from trinity_core.testing.world import VOCAB, World

EVERYTHING = frozenset({"expert", "pairs", "teacher_logits"})
LOSSES = (
    PPOClip(),
    PPOClip(clip_high=0.28, dual_clip=3.0),
    ImportanceSampling(),
    SFT(),
    *(toy() for toy in TOY_LOSSES),
)


class Tiny(torch.nn.Module):
    def __init__(self, dtype: torch.dtype, width: int = 6) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        shapes = {"embed": (VOCAB, width), "mix": (width, width), "head": (width, VOCAB), "value": (width,)}
        for name, shape in shapes.items():
            start = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            setattr(self, name, torch.nn.Parameter(start))

    def forward(self, batch: TrainBatch, objective: Objective) -> dict[str, torch.Tensor]:
        """All outputs over the batch's action tokens; each sequence is computed by itself."""
        hidden = [torch.zeros(0, self.embed.shape[1], dtype=self.embed.dtype)]
        for start, stop in zip(batch.offsets_B1[:-1], batch.offsets_B1[1:]):
            embedded = self.embed[torch.as_tensor(batch.tokens_T[start:stop].astype(np.int64))]
            count = torch.arange(1, len(embedded) + 1, dtype=embedded.dtype)[:, None]
            hidden.append(torch.tanh(embedded.cumsum(0) / count @ self.mix))
        hidden_N = torch.cat(hidden)[torch.as_tensor(predictor_N(batch))]
        temperature_N = torch.as_tensor(batch.temperature_N).to(hidden_N.dtype)
        logits_NV = hidden_N @ self.head / temperature_N[:, None]
        logp_NV = logits_NV.log_softmax(-1)
        token_N = torch.as_tensor(batch.tokens_T[batch.action_N].astype(np.int64))
        found = {"logp": logp_NV.gather(1, token_N[:, None])[:, 0], "entropy": -(logp_NV.exp() * logp_NV).sum(-1)}
        found["value"] = hidden_N @ self.value
        aux = {"token_C": token_N, "teacher_logits_CV": torch.as_tensor(batch.measured["teacher_hidden"])}
        for function in objective.vocab().values():
            found |= function(logits_NV, aux)
        return {name: value for name, value in found.items() if name in objective.outputs or name not in OWN_NAMES}


def update(seed: int = 0) -> TrainBatch:
    """One update with everything a loss may ask for: old log-probabilities near the tiny model's, as in a real step."""
    batch = World.of(EVERYTHING, seed=seed).batch
    with torch.no_grad():
        logp_N = Tiny(torch.float64)(batch, Objective.of(SFT()))["logp"].numpy()
    rng = np.random.default_rng(seed)
    for name, spread in (("old_logp", 0.2), ("ref_logp", 0.4)):
        batch.measured[name] = logp_N + rng.normal(size=len(logp_N)) * spread
    batch.coef = {"kl": 0.1, "entropy": 0.01, "value": 0.5}
    return batch


def gradient(objective, batch, cuts, *, two_pass=False, dtype=torch.float64):
    """Flat gradient of every parameter, the loss, and the stats."""
    model = Tiny(dtype)
    loss, stats = accumulate(objective, batch, cuts, lambda micro: model(micro, objective), two_pass=two_pass)
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.reshape(-1) for part in parts]).double().numpy(), loss, stats


def pieces(batch: TrainBatch, scope: str, number: int) -> list[np.ndarray]:
    """The batch in (at most) ``number`` micro-batches of whole units, in an order that mixes groups."""
    unit_B = batch.unit_B(scope)
    units = np.random.default_rng(1).permutation(np.unique(unit_B))
    parts = [np.flatnonzero(np.isin(unit_B, part)) for part in np.array_split(units, number)]
    return [part for part in parts if len(part)]
