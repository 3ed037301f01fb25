"""A small synthetic update for the contracts of losses and corrections: real groups, a free logit per prediction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinity_core.algo.accumulate import accumulate
from trinity_core.algo.assemble import assemble
from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.algo.stats import Stats
from trinity_core.types import Attempt, Call, Experience, Group, Ok, Origin, Role, Sampling, Task

VOCAB = 7


def experience(
    rng: np.random.Generator, prompt: Sequence[int], replies: Sequence[int], *, origin: Origin = Origin.SAMPLED
) -> Experience:
    """A prompt, then replies of these lengths with one token of context between them."""
    tokens, origins, calls = list(prompt), [int(Origin.CONTEXT)] * len(prompt), []
    for step, length in enumerate(replies):
        if step:
            tokens, origins = [*tokens, 0], [*origins, int(Origin.CONTEXT)]
        start = len(tokens)
        tokens += rng.integers(1, VOCAB, length).tolist()
        origins += [int(origin)] * length
        if origin == Origin.SAMPLED:
            calls.append(
                Call(start, len(tokens), step, [(0, start)], Sampling(), reward=float(rng.normal()), state=f"s{step}")
            )
    origin_T = np.array(origins, dtype=np.uint8)
    logp_T = np.where(origin_T == Origin.SAMPLED, -rng.uniform(0.5, 3.0, len(tokens)), np.nan).astype(np.float32)
    return Experience(np.array(tokens, dtype=np.int32), origin_T, logp_T, calls)


def play(
    rng: np.random.Generator,
    lengths: Sequence[Sequence[int]],
    *,
    name: str,
    roles: Sequence[Role] = (),
    pairs: Sequence[tuple[int, int]] = (),
) -> Group:
    """A group: one attempt for each list of reply lengths, all after one prompt."""
    prompt = rng.integers(1, VOCAB, 3).tolist()
    attempts = []
    for index, replies in enumerate(lengths):
        role: Role = roles[index] if index < len(roles) else "sample"
        origin = Origin.SAMPLED if role == "sample" else Origin.TARGET
        score = Ok(float(rng.normal())) if role == "sample" else None
        attempts.append(Attempt([experience(rng, prompt, replies, origin=origin)], role=role, score=score, index=index))
    return Group(f"world/{name}", Task(name, ()), attempts, pairs=list(pairs))


@dataclass
class World:
    """One update, and a model of it that is a free logit (and a free value) per action token."""

    batch: TrainBatch
    logits_NV: NDArray[np.float64]
    value_N: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        needs: frozenset[str],
        *,
        reduction: str = "token_mean",
        seed: int = 0,
        by: str = "attempt",
        spread: float = 0.4,
    ) -> World:
        """Groups of uneven size and length, with experts and pairs where ``needs`` asks for them. Old log-probabilities
        differ from the present ones by ``spread`` nats on average."""
        rng = np.random.default_rng(seed)
        groups = [play(rng, [[3], [1], [4, 2]], name="a"), play(rng, [[2], [5]], name="b"), play(rng, [[1]], name="c")]
        first = groups[0].attempts[0].experiences
        first.append(dataclasses.replace(experience(rng, first[0].tokens_T.tolist(), [2]), index=1, parent=0))
        if "expert" in needs:
            groups.append(play(rng, [[3], [6]], name="d", roles=["expert", "expert"]))
        if "pairs" in needs:
            groups.append(
                play(rng, [[3], [5], [2]], name="e", roles=["chosen", "rejected", "rejected"], pairs=[(0, 1), (0, 2)])
            )
            groups.append(play(rng, [[4], [1]], name="f", roles=["chosen", "rejected"], pairs=[(0, 1)]))
        batch = assemble(groups, seed=seed, step=3)
        size = batch.num_actions
        batch.extras["place"] = (np.arange(size), "action")
        logits_NV, value_N = rng.normal(size=(size, VOCAB)), rng.normal(size=size)
        shifted = logits_NV - np.log(np.exp(logits_NV).sum(-1, keepdims=True))
        logp_N = shifted[np.arange(size), batch.tokens_T[batch.action_N]]
        for name in ("old_logp", "ref_logp", "teacher_logp"):
            batch.measured[name] = logp_N + rng.normal(size=size) * spread
        batch.measured["value"] = value_N + rng.normal(size=size) * 0.1
        batch.measured["entropy"] = rng.uniform(0.5, 1.5, size)
        batch.sampler_logp_N = np.where(
            np.isnan(batch.sampler_logp_N), np.nan, batch.measured["old_logp"] + rng.normal(size=size) * spread
        )
        batch.advantage_N = rng.normal(size=len(np.unique(batch.attempt_B)) + 100)[batch.attempt_B[batch.row_N]]
        batch.returns_N = rng.normal(size=size)
        batch.measured["teacher_hidden"] = rng.normal(size=(size, VOCAB))
        set_weights(batch, reduction, by=by, max_attempt_tokens=8)
        return cls(batch, logits_NV, value_N)

    def doubled(self) -> TrainBatch:
        """The batch twice over: the same groups again, under other numbers."""
        batch, size = self.batch, len(self.batch)
        twice = batch.select(np.tile(np.arange(size), 2))
        group_B = np.concatenate([batch.group_B, batch.group_B + batch.group_B.max() + 1])
        attempt_B = np.concatenate([batch.attempt_B, batch.attempt_B + batch.attempt_B.max() + 1])
        pairs_P2 = np.concatenate([batch.pairs_P2, batch.pairs_P2 + size])
        weight_P = {name: np.tile(weight, 2) for name, weight in batch.pair_weight.items()}
        return dataclasses.replace(twice, group_B=group_B, attempt_B=attempt_B, pairs_P2=pairs_P2, pair_weight=weight_P)

    def outputs(self, objective: Objective, batch: TrainBatch, logits_NV: Tensor, value_N: Tensor) -> dict[str, Tensor]:
        """What a backend's forward would give for ``batch`` (any selection of this world's)."""
        place_N = torch.as_tensor(batch.extras["place"][0])
        token_N = torch.as_tensor(batch.tokens_T[batch.action_N].astype(np.int64))
        logits = logits_NV[place_N]
        logp_NV = logits.log_softmax(-1)
        found = {"logp": logp_NV.gather(1, token_N[:, None])[:, 0]}
        if "entropy" in objective.outputs:
            found["entropy"] = -(logp_NV.exp() * logp_NV).sum(-1)
        if "entropy_value" in objective.outputs:
            found["entropy_value"] = -(logp_NV.exp() * logp_NV).sum(-1).detach()
        if "value" in objective.outputs:
            found["value"] = value_N[place_N]
        aux = {"token_C": token_N} | {
            name: torch.as_tensor(array) for name, (array, axis) in batch.extras.items() if axis == "action"
        }
        aux["teacher_logits_CV"] = torch.as_tensor(batch.measured["teacher_hidden"])
        for function in objective.vocab().values():
            found |= dict(function(logits, aux))
        return found

    def gradient(
        self,
        objective: Objective,
        *,
        batch: TrainBatch | None = None,
        cuts: Sequence[NDArray[np.int64]] | None = None,
        two_pass: bool = False,
    ) -> Outcome:
        """Loss, gradient over every logit and value, and stats of one update cut into ``cuts`` (default: uncut)."""
        batch = self.batch if batch is None else batch
        logits_NV = torch.tensor(self.logits_NV, requires_grad=True)
        value_N = torch.tensor(self.value_N, requires_grad=True)

        def forward(micro: TrainBatch) -> Mapping[str, Tensor]:
            return self.outputs(objective, micro, logits_NV, value_N)

        cuts = [np.arange(len(batch))] if cuts is None else cuts
        loss, stats = accumulate(objective, batch, cuts, forward, two_pass=two_pass)
        parts = [np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy() for leaf in (logits_NV, value_N)]
        return Outcome(loss, np.concatenate([part.ravel() for part in parts]), stats)

    def leaves(self, objective: Objective) -> dict[str, Tensor]:
        """Every differentiable output of the forward, as a leaf."""
        with torch.no_grad():
            found = self.outputs(objective, self.batch, torch.tensor(self.logits_NV), torch.tensor(self.value_N))
        return {name: leaf.clone().requires_grad_() for name, leaf in found.items()}


@dataclass
class Outcome:
    loss: float
    gradient: NDArray[np.float64]
    stats: Stats

    def differs(self, other: Outcome, factor: float = 1.0) -> float:
        """‖difference‖ / ‖gradient‖, with the other's gradient divided by ``factor``."""
        size = max(float(np.linalg.norm(self.gradient)), 1e-300)
        return float(np.linalg.norm(self.gradient - other.gradient / factor)) / size


Rule = Callable[[Any], None]
