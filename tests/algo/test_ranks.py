"""Gradients summed over two gloo ranks are those of one: odd numbers of sequences, one rank without an expert's token."""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest
import torch
from algo_tiny import LOSSES, Tiny, gradient, pieces, update

from trinity_core.algo.accumulate import linearize, send
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import REDUCTIONS, set_weights
from trinity_core.config.schema import Kl


def objective_of(loss):
    return Objective.of(loss, kl=Kl("k3", 0.1), entropy=True)


def share_of(batch, scope, rank):
    """Units dealt to two ranks: rank 1 gets sequences of the first groups only, so it has neither experts nor pairs."""
    own = batch.unit_B(scope)
    first = np.unique(own[batch.group_B == 0])[:3]
    mine = np.isin(own, first)
    return np.flatnonzero(mine if rank else ~mine)


def gathered(objective, batch, rank):
    """A loss of batch scope: outputs of both ranks are gathered, then each sends back what it forwarded."""
    rows = [share_of(batch, "sequence", one) for one in range(2)]
    model, mine = Tiny(torch.float64), batch.select(rows[rank])
    outputs = model(mine, objective)
    parts: list = [None, None]
    torch.distributed.all_gather_object(parts, {name: value.detach() for name, value in outputs.items()})
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    weights, loss, stats = linearize(objective, batch.select(np.concatenate(rows)), whole)
    start = rank * len(parts[0]["logp"])
    send(outputs, {name: weight[start : start + mine.num_actions] for name, weight in weights.items()})
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([grad.reshape(-1) for grad in grads]).numpy(), loss if rank == 0 else 0.0, stats


def work(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    try:
        batch = update()
        assert len(share_of(batch, "sequence", 1)) % 2 == 1
        assert not (batch.population_B[share_of(batch, "sequence", 1)] == 2).any()
        for loss in LOSSES:
            for reduction in REDUCTIONS:
                set_weights(batch, reduction, max_attempt_tokens=8)
                objective = objective_of(loss)
                whole, value, _ = gradient(objective, batch, [np.arange(len(batch))])
                if loss.scope == "batch":
                    part, share, stats = gathered(objective, batch, rank)
                else:
                    mine = batch.select(share_of(batch, loss.scope, rank))
                    part, share, stats = gradient(objective, mine, pieces(mine, loss.scope, 3))
                summed = torch.cat([torch.from_numpy(part), torch.tensor([share], dtype=torch.float64)])
                torch.distributed.all_reduce(summed)
                away = np.linalg.norm(summed[:-1].numpy() - whole) / np.linalg.norm(whole)
                assert away <= 1e-12, (type(loss).__name__, reduction, away)
                assert abs(float(summed[-1]) - value) <= 1e-12 * max(1, abs(value))
                keys: list = [None, None]
                torch.distributed.all_gather_object(keys, sorted(stats.values))
                assert keys[0] == keys[1]  # statistics have the same names on a rank without experts
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_gradients_of_two_ranks_sum_to_those_of_one():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (port,), nprocs=2)
