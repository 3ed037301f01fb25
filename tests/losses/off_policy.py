"""Random updates far from and near to the old policy, as a batch and as plain lists; and a sequence of given numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from trinity_core.algo.assemble import assemble
from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.testing.world import play

SPREADS = (1e-4, 0.03, 0.4, 2.0)
"""Nats between the present and the old policy, sequence by sequence."""
ADVANTAGES = (1.0, -1.0, 0.0, -1.0, 1.0)
REWARDS = (1.0, -1.0, 0.0, 0.5, -2.0)


@dataclass
class Tokens:
    """One experience as lists of numbers."""

    attempt: int
    logp: list[float]
    old: list[float]
    ref: list[float]
    sampler: list[float]
    advantage: list[float]
    reward: float


def random_update(seed: int) -> tuple[TrainBatch, np.ndarray, list[Tokens]]:
    """Twelve attempts of 1 to 60 action tokens, one of two experiences and one that an expert gave; every sign of advantage
    and reward, at every distance from the old policy. Probabilities stay below 1."""
    rng = np.random.default_rng(seed)
    groups = [
        play(rng, [[1], [3], [25], [4]], name="a"),
        play(rng, [[2, 40], [60], [5], [9]], name="b"),
        play(rng, [[8], [13], [1], [17]], name="c", roles=["sample", "expert"]),
    ]
    second = play(rng, [[6]], name="d").attempts[0].experiences[0]
    second.index = 1
    groups[0].attempts[2].experiences.append(second)
    batch = assemble(groups, seed=seed, step=1)
    spread_B = rng.permutation(np.resize(SPREADS, len(batch)))
    shift_B = rng.normal(size=len(batch)) * spread_B
    logp_N = rng.uniform(-3, -0.02, batch.num_actions)
    away_N = (rng.normal(size=batch.num_actions) * spread_B[batch.row_N] + shift_B[batch.row_N]) * 0.7
    below = -1e-3
    old_N = np.minimum(logp_N - away_N, below)
    sampler_N = np.minimum(old_N + rng.normal(size=batch.num_actions) * 0.1 * spread_B[batch.row_N], below)
    attempts = int(batch.attempt_B.max()) + 1
    size_A, start = rng.uniform(0.2, 2.0, attempts), int(rng.integers(5))
    signs_A = np.resize(ADVANTAGES, attempts + start)[start:]
    reward_A = np.resize(REWARDS, attempts + start)[start:]
    batch.advantage_N = (size_A * signs_A)[batch.attempt_B[batch.row_N]]
    batch.reward_B = np.where(np.isnan(batch.reward_B), np.nan, reward_A[batch.attempt_B])
    batch.sampler_logp_N = np.where(np.isnan(batch.sampler_logp_N), np.nan, sampler_N)
    batch.measured = {"old_logp": old_N, "ref_logp": logp_N - rng.normal(size=batch.num_actions) * 0.3}
    arrays = (logp_N, old_N, batch.measured["ref_logp"], batch.sampler_logp_N, batch.advantage_N)
    sequences = []
    for row in range(len(batch)):
        lists = [array[batch.row_N == row].tolist() for array in arrays]
        sequences.append(Tokens(int(batch.attempt_B[row]), *lists, float(batch.reward_B[row])))
    return batch, logp_N, sequences


def factors(sequences: list[Tokens], reduction: str) -> list[float]:
    """The factor of each sequence's values, by counting: a sequence is an attempt."""
    tokens = sum(len(one.logp) for one in sequences)
    attempts = len({one.attempt for one in sequences})
    found = []
    for one in sequences:
        own = sum(len(other.logp) for other in sequences if other.attempt == one.attempt)
        by_name = {"token_mean": 1 / tokens, "seq_mean_token_sum": 1 / attempts}
        found.append(by_name.get(reduction, 1 / (attempts * own)))
    return found


def gradient_of(loss, batch: TrainBatch, logp_N, **how):
    """Loss, gradient over every token's log-probability, and metrics, under the loss's own reduction."""
    set_weights(batch, loss.reduction)
    leaf_N = torch.tensor(np.asarray(logp_N, dtype=np.float64), requires_grad=True)
    share, stats = Objective.of(loss, **how)(batch, {"logp": leaf_N})
    share.backward()
    return float(share.detach()), leaf_N.grad.numpy(), stats.summary()


def sequence(loss, *, d, advantage=1.0, logp=-1.0, reward=1.0, **how):
    """Loss, gradient and metrics of one sequence of given ``d = logp − old`` (of any of old, reference and sampler)."""
    size = len(d)
    rng = np.random.default_rng(0)
    batch = assemble([play(rng, [[size]], name="one")], seed=0, step=1)
    logp_N = np.full(size, logp)
    old_N = logp_N - np.asarray(d, dtype=np.float64)
    batch.measured = {"old_logp": old_N, "ref_logp": old_N}
    batch.sampler_logp_N = old_N
    batch.advantage_N = np.full(size, float(advantage))
    batch.reward_B = np.array([float(reward)])
    value, gradient_N, metrics = gradient_of(loss, batch, logp_N, **how)
    return value, gradient_N.tolist(), metrics


def ratio(log_ratio: float) -> float:
    """``exp`` of a difference that is clamped to ±20."""
    return math.exp(min(max(log_ratio, -20.0), 20.0))
