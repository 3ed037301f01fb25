"""Gradients do not depend on how a batch is cut: every loss, every reduction, direct and two-pass, float64 and float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from algo_tiny import LOSSES, gradient, pieces, update

from trinity_core.algo.cut import cut, packed_tokens, plan
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import REDUCTIONS, set_weights
from trinity_core.builtins.corrections.truncated_is import TruncatedIS
from trinity_core.config.schema import Kl

torch.set_num_threads(1)
LIMIT = {torch.float64: 1e-12, torch.float32: 1e-5}
NAMES = [f"{type(loss).__name__}-{number}" for number, loss in enumerate(LOSSES)]


def full(loss, old="measured"):
    """The objective with everything on: KL, entropy, and a correction where the loss allows one."""
    corrections = [TruncatedIS()] if loss.unit == "token" else []
    return Objective.of(loss, corrections, kl=Kl("k3", 0.1), entropy=True, old=old)


def away(one, other):
    return np.linalg.norm(one - other) / np.linalg.norm(one)


@pytest.mark.parametrize("dtype", LIMIT, ids=["float64", "float32"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_gradients_do_not_depend_on_the_cut(loss, reduction, dtype):
    batch, objective = update(), full(loss)
    set_weights(batch, reduction, max_attempt_tokens=8)
    whole, loss_whole, stats = gradient(objective, batch, [np.arange(len(batch))], dtype=dtype)
    assert np.linalg.norm(whole) > 0
    for number in (8, 4, 2, 1):
        ways = [("sequence", True)] if loss.scope == "batch" else [(loss.scope, False), ("sequence", True)]
        for scope, two_pass in ways:
            found, value, merged = gradient(
                objective, batch, pieces(batch, scope, number), two_pass=two_pass, dtype=dtype
            )
            assert away(whole, found) <= LIMIT[dtype], (number, scope, two_pass)
            assert value == pytest.approx(loss_whole, rel=10 * LIMIT[dtype], abs=LIMIT[dtype])
            assert merged.summary() == pytest.approx(stats.summary(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("by", ["attempt", "experience"])
@pytest.mark.parametrize("denominator", ["all", "kept"])
@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_dropped_tokens_change_no_cut(loss, by, denominator):
    batch, objective = update(3), full(loss, old="forward")
    batch.keep_N[::4] = False
    batch.keep_N[batch.row_N == 2] = False
    set_weights(batch, "seq_mean_token_mean", by=by, denominator=denominator)
    whole, _, _ = gradient(objective, batch, [np.arange(len(batch))])
    for scope, two_pass in [("sequence", True)] if loss.scope == "batch" else [(loss.scope, False), ("sequence", True)]:
        found, _, _ = gradient(objective, batch, pieces(batch, scope, 8), two_pass=two_pass)
        assert away(whole, found) <= 1e-12


def test_a_scale_scales_the_gradient_and_not_the_loss():
    batch, objective = update(), full(LOSSES[0])
    set_weights(batch, "token_mean")
    from algo_tiny import Tiny

    from trinity_core.algo.objective import accumulate

    found = {}
    for two_pass in (False, True):
        for scale in (1.0, 4.0):
            model = Tiny(torch.float64)
            value, _ = accumulate(
                objective,
                batch,
                pieces(batch, "token", 4),
                lambda micro, m=model: m(micro, objective),
                two_pass=two_pass,
                scale=scale,
            )
            found[two_pass, scale] = (value, model.embed.grad.norm().item())
    for two_pass in (False, True):
        assert found[two_pass, 4.0][0] == pytest.approx(found[two_pass, 1.0][0])
        assert found[two_pass, 4.0][1] == pytest.approx(4 * found[two_pass, 1.0][1])


def test_two_passes_hold_one_graph_at_a_time():
    """After each backward nothing keeps a micro-batch's graph: its hidden states are freed before the next forward."""
    import weakref

    batch, objective = update(), full(LOSSES[0])
    set_weights(batch, "token_mean")
    weight = torch.zeros(batch.num_actions, dtype=torch.float64, requires_grad=True)
    alive: list[weakref.ref] = []
    most = 0

    def forward(micro):
        nonlocal most
        most = max(most, sum(ref() is not None for ref in alive))
        place_N = torch.as_tensor(micro.extras["place"][0])
        hidden_N = weight[place_N].exp()
        if torch.is_grad_enabled():
            alive.append(weakref.ref(hidden_N))
        return {"logp": -hidden_N, "entropy": hidden_N * 2}

    from trinity_core.algo.objective import accumulate

    accumulate(objective, batch, pieces(batch, "token", 8), forward, two_pass=True)
    assert len(alive) == 8
    assert most <= 1


@pytest.mark.parametrize("scope", ["token", "pair", "group", "batch"])
@pytest.mark.parametrize("budget", [1, 15, 30, 10_000])
def test_a_cut_has_every_sequence_once_and_units_whole(scope, budget):
    batch = update()
    cuts = cut(batch, scope=scope, max_tokens=budget)
    assert sorted(np.concatenate(cuts).tolist()) == list(range(len(batch)))
    unit_B = batch.unit_B(scope)
    homes = [set(unit_B[rows].tolist()) for rows in cuts]
    assert sum(map(len, homes)) == len(np.unique(unit_B))
    for rows, units in zip(cuts, homes):
        assert packed_tokens(batch, rows) <= budget or len(units) == 1
    sizes = [packed_tokens(batch, rows) for rows in cuts]
    assert sizes == sorted(sizes, reverse=True)  # the largest first


def test_a_cut_keeps_a_group_together_where_it_fits():
    batch = update()
    largest = max(packed_tokens(batch, np.flatnonzero(batch.group_B == group)) for group in np.unique(batch.group_B))
    cuts = cut(batch, scope="token", max_tokens=largest)
    homes = [set(batch.group_B[rows].tolist()) for rows in cuts]
    assert sum(map(len, homes)) == len(np.unique(batch.group_B))


def test_a_batch_scope_that_does_not_fit_takes_two_passes():
    batch = update()
    assert plan(batch, scope="batch", max_tokens=10_000)[1] is False
    cuts, two_pass = plan(batch, scope="batch", max_tokens=20)
    assert two_pass and len(cuts) > 1
    assert plan(batch, scope="token", max_tokens=1)[1] is False
    assert plan(batch, scope="token", max_tokens=1, direct=False)[1] is True
