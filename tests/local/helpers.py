"""Batches for the tests of ``local`` and ``hf``."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from trinity_core.algo.assemble import assemble
from trinity_core.algo.batch import LossOutput, TrainBatch
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.protocols import Loss
from trinity_core.types import Attempt, Call, Experience, Group, Ok, Origin, Sampling, Task


class Weighted(Loss):
    """``-logp · advantage`` and the entropy's mean: both outputs have a gradient."""

    def needs(self) -> frozenset[str]:
        return frozenset({"entropy_grad"})

    def __call__(self, batch: Any) -> LossOutput:
        return LossOutput.per_token(-batch.logp_N * batch.advantage_N - 0.1 * batch.entropy_N)


def objective(loss: Loss | None = None) -> Objective:
    return Objective.of(loss or Weighted(), old="forward")


def experience(
    context: list[int], action: list[int], temperature: float = 1.0, more: list[int] | None = None
) -> Experience:
    """A prompt and an answer; ``more``: a tool's words and a second answer of two tokens behind it."""
    tokens = [*context, *action]
    calls = [Call(len(context), len(tokens), 0, [(0, 0)], Sampling(temperature=temperature))]
    origin = [Origin.CONTEXT] * len(context) + [Origin.SAMPLED] * len(action)
    if more:
        start = len(tokens) + len(more)
        tokens, origin = [*tokens, *more, 7, 9], origin + [Origin.CONTEXT] * len(more) + [Origin.SAMPLED] * 2
        calls.append(Call(start, start + 2, 1, [(0, 0)], Sampling(temperature=temperature)))
    origin_T = np.array(origin, np.uint8)
    logp_T = np.where(origin_T == Origin.SAMPLED, -1.0, np.nan).astype(np.float32)
    return Experience(np.array(tokens, np.int32), origin_T, logp_T, calls)


def groups(seed: int = 0, num: int = 3, attempts: int = 4) -> list[Group]:
    """Groups of unequal prompts; attempts of unequal lengths and temperatures; some with a tool's turn or a branch."""
    rng = np.random.default_rng(seed)
    made = []
    for g in range(num):
        prompt = rng.integers(3, 250, size=5 + 4 * g).tolist()
        task = Task(f"{g:016x}", ({"role": "user", "content": "?"},))
        played = []
        for a in range(attempts):
            words = rng.integers(3, 250, size=1 + (a * 3 + g) % 5).tolist()
            one = experience(
                prompt, words, 1.0 if a % 2 else 0.7, rng.integers(3, 250, size=3).tolist() if a == 1 else None
            )
            experiences = [one]
            if a == 2:  # a branch: the same first words, another turn
                branch = experience([*one.tokens_T.tolist(), 11, 12, 13], [21, 22, 23])
                branch.parent, branch.index = 0, 1
                experiences.append(branch)
            played.append(Attempt(experiences, index=a, task=task, score=Ok(float(rng.normal()))))
        made.append(Group(f"run/{g:016x}", task, played, "train", g, g))
    return made


def batch(seed: int = 0, *, num: int = 3, attempts: int = 4) -> TrainBatch:
    made = assemble(groups(seed, num, attempts), seed=seed, step=0)
    made.advantage_N = np.random.default_rng(seed).normal(size=made.num_actions)
    set_weights(made, "token_mean")
    return made


def gradient(live: Any, made: TrainBatch, loss: Loss | None = None) -> torch.Tensor:
    """The update's gradient as one vector, read where the optimizer would take it."""
    return gradient_of(live, made, objective(loss))


def gradient_of(live: Any, made: TrainBatch, what: Objective, model: str = "policy") -> torch.Tensor:
    taken: list[torch.Tensor] = []
    learner = live.learners[model]
    step = learner.optimizer.step
    learner.optimizer.step = lambda: taken.append(
        torch.cat([p.grad.flatten() for p in learner.trained.values()]).clone()
    )
    clip, learner.optim = learner.optim, dataclasses.replace(learner.optim, clip_norm=None)
    try:
        live.update(made, model, what, lr_scale=1.0)
    finally:
        learner.optimizer.step, learner.optim = step, clip
    return taken[0]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())
