"""What the references of this folder walk over: one plain record per action token, and what the kernel made of the same batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from trinity_core.algo.cut import uniform_N
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.testing.world import World

torch.set_num_threads(1)


@dataclass
class Token:
    """One action token, as plain numbers."""

    sequence: int
    attempt: int
    expert: bool
    keep: bool
    logp: float
    old: float
    ref: float
    sampler: float
    advantage: float
    uniform: float

    @property
    def p(self) -> float:
        return math.exp(self.logp)

    @property
    def ratio(self) -> float:
        return math.exp(min(max(self.logp - self.old, -20.0), 20.0))


@dataclass
class Found:
    """Loss, gradient by log-probability, and statistics, as the kernel computes them."""

    loss: float
    gradient: list[float]
    stats: dict[str, float]


def world_for(loss, seed, *, also=(), change=None):
    """A world with what ``loss`` needs (and ``also``), changed before its weights are counted."""
    world = World.of(loss.needs() | set(also), seed=seed)
    if change is not None:
        change(world)
    set_weights(world.batch, loss.reduction, max_attempt_tokens=8)
    return world


def kernel(loss, batch, logp, **outputs) -> Found:
    """The loss of one uncut update whose present log-probabilities are ``logp``."""
    leaf = torch.tensor(np.asarray(logp), dtype=torch.float64, requires_grad=True)
    share, stats = Objective.of(loss)(batch, {"logp": leaf, **outputs})
    (found,) = torch.autograd.grad(share, [leaf], allow_unused=True)
    return Found(float(share.detach()), [0.0] * len(leaf) if found is None else found.tolist(), stats.summary())


def logp_of(world) -> list[float]:
    tokens = world.batch.tokens_T[world.batch.action_N]
    logits = world.logits_NV
    return [float(row[token] - math.log(np.exp(row).sum())) for row, token in zip(logits, tokens)]


def walk(batch, logp) -> list[Token]:
    """The batch's action tokens, one by one."""
    uniform, measured = uniform_N(batch), batch.measured
    return [
        Token(
            sequence=int(row),
            attempt=int(batch.attempt_B[row]),
            expert=bool(batch.population_B[row] == 2),
            keep=bool(batch.keep_N[n]),
            logp=float(logp[n]),
            old=float(measured["old_logp"][n]),
            ref=float(measured["ref_logp"][n]),
            sampler=float(batch.sampler_logp_N[n]),
            advantage=float(batch.advantage_N[n]),
            uniform=float(uniform[n]),
        )
        for n, row in enumerate(batch.row_N.tolist())
    ]


def flat(world, *, logp, old=None, ref=None, sampler=None, advantage=None, rows=None):
    """A batch of some of the world's sequences with numbers written by hand, and their log-probabilities."""
    batch = world.batch if rows is None else world.batch.select(rows)
    size = batch.num_actions
    batch.measured["old_logp"] = np.broadcast_to(np.asarray(0.0 if old is None else old, float), size).copy()
    batch.measured["ref_logp"] = np.broadcast_to(np.asarray(0.0 if ref is None else ref, float), size).copy()
    if sampler is not None:
        batch.sampler_logp_N = np.broadcast_to(np.asarray(sampler, float), size).copy()
    batch.advantage_N = np.broadcast_to(np.asarray(0.0 if advantage is None else advantage, float), size).copy()
    return batch, np.broadcast_to(np.asarray(logp, float), size).copy()
