"""Every combination of the switches that save work gives the gradient of a plain loop, step after step."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from tests.local.helpers import Weighted, distance, gradient_of, groups
from tests.local.plain_loop import PlainLoop
from trinity_core.algo.assemble import assemble
from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.builtins.models import packing
from trinity_core.config.schema import Kl

STEPS, LR = 5, 0.1
LIMIT = {"float32": 1e-5, "float64": 1e-10}
SWITCHES = [
    {"share_prefix": share, "skip_inert": skip, "gradient_checkpointing": again, "micro_tokens": tokens}
    for share, skip, again, tokens in itertools.product((True, False), (True, False), (False, True), (4096, 40, 1))
]
CASES = [
    (dtype, one) for dtype in LIMIT for one in SWITCHES if not (dtype == "float64" and one["gradient_checkpointing"])
]
"""All that check allows."""


def named(switches: Any) -> str:
    if isinstance(switches, str):
        return switches
    on = [name for name, value in switches.items() if value is True]
    return f"{'+'.join(on) or 'none'}-{switches['micro_tokens']}"


def stored() -> TrainBatch:
    """Four groups with credit between their attempts, and one of them without any."""
    made = assemble(groups(3, num=4), seed=0, step=0)
    made.advantage_N = np.random.default_rng(3).normal(size=len(made))[made.row_N]
    made.advantage_N[made.group_B[made.row_N] == 1] = 0.0
    set_weights(made, "token_mean")
    return made


def on_policy() -> Objective:
    return Objective.of(PPOClip(), old="forward")


def put(live: Any, weights: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(live.policy.module.parameters(), weights):
            parameter.copy_(value)


@pytest.fixture(scope="module", params=["float32", "float64"])
def reference(request: pytest.FixtureRequest, tiny: Any) -> tuple[str, list[tuple[list[torch.Tensor], torch.Tensor]]]:
    torch.set_num_threads(1)
    plain = PlainLoop(tiny, getattr(torch, request.param))
    return request.param, list(plain.descend(stored(), LR, STEPS + 1))


@pytest.mark.parametrize(("reference", "switches"), CASES, indirect=["reference"], ids=named)
def test_every_combination_has_the_gradient_of_a_plain_loop(
    switches: dict[str, Any], reference: Any, make_run: Any, tmp_path: Any
) -> None:
    """Each of five steps starts from the reference's weights; and five steps of its own SGD end where the reference's do."""
    dtype, steps = reference
    live, made = Local(**switches).open(make_run(dtype)), stored()
    assert (live.describe()["shared_prefixes"] == "computed once") == switches["share_prefix"]
    for weights, wanted in steps[:STEPS]:
        put(live, weights)
        assert distance(gradient_of(live, made, on_policy()), wanted) <= LIMIT[dtype]
    put(live, steps[0][0])
    for _ in range(STEPS):
        found, start = gradient_of(live, made, on_policy()), 0
        with torch.no_grad():
            for parameter in live.policy.module.parameters():
                parameter -= LR * found[start : start + parameter.numel()].view_as(parameter)
                start += parameter.numel()
    moved = torch.cat([(p.detach() - w).flatten() for p, w in zip(live.policy.module.parameters(), steps[0][0])])
    wanted = torch.cat([(b - a).flatten() for a, b in zip(steps[0][0], steps[STEPS][0])])
    assert distance(moved, wanted) <= LIMIT[dtype]


@pytest.mark.parametrize("join", [0, 10**9], ids=["a block each", "one block"])
def test_how_cells_are_blocked_changes_nothing(
    join: int, reference: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype, steps = reference
    monkeypatch.setitem(packing.pack.__kwdefaults__, "join", join)
    live = Local().open(make_run(dtype))
    put(live, steps[0][0])
    assert distance(gradient_of(live, stored(), on_policy()), steps[0][1]) <= LIMIT[dtype]


def test_skipped_work_has_no_gradient(make_run: Any) -> None:
    """The rows that are left out, computed after all: a gradient of exactly 0, and a loss of 0."""
    live, made = Local(skip_inert=False).open(make_run("float64")), stored()
    rows = np.setdiff1d(np.arange(len(made)), on_policy().live_rows(made))
    assert set(made.group_B[rows].tolist()) == {1}
    assert float(gradient_of(live, made.select(rows), on_policy()).norm()) == 0.0
    assert float(gradient_of(live, made, on_policy()).norm()) > 0.0


def test_skipped_sequences_stay_in_the_denominators_and_are_counted(make_run: Any) -> None:
    made = stored()
    results = [
        Local(skip_inert=skip).open(make_run("float64")).update(made, "policy", on_policy(), lr_scale=1.0)
        for skip in (True, False)
    ]
    assert results[0].grad_norm == pytest.approx(results[1].grad_norm, rel=1e-12)
    assert results[0].loss == pytest.approx(results[1].loss, abs=1e-12)
    skipped = int((made.group_B[made.row_N] == 1).sum())
    assert [result.stats["tokens/skipped"] for result in results] == [skipped, 0.0]
    assert [result.stats["tokens"] for result in results] == [made.num_actions] * 2
    for name in ("kept", "advantage"):
        assert results[0].stats[name] == pytest.approx(results[1].stats[name], rel=1e-12)


def test_an_update_of_inert_sequences_alone_is_a_step_of_gradient_zero(make_run: Any) -> None:
    """Moments decay as they would: the same weights with and without skipping."""
    made = stored()
    inert = stored()
    inert.advantage_N = np.zeros(inert.num_actions)
    ends = []
    for skip in (True, False):
        live = Local(skip_inert=skip).open(make_run("float64"))
        live.update(made, "policy", on_policy(), lr_scale=1.0)
        before = live.digest()
        result = live.update(inert, "policy", on_policy(), lr_scale=1.0)
        assert result.skipped is None and result.grad_norm == 0.0 and live.digest() != before
        ends.append(torch.cat([p.detach().flatten() for p in live.policy.module.parameters()]))
    assert distance(ends[0], ends[1]) <= 1e-12


@pytest.mark.parametrize(
    "objective",
    [
        pytest.param(Objective.of(PPOClip(), entropy=True, old="forward"), id="entropy"),
        pytest.param(Objective.of(PPOClip(), kl=Kl("k3", 0.1), old="forward"), id="kl"),
    ],
)
def test_nothing_is_inert_where_another_term_is_added(objective: Objective) -> None:
    made = stored()
    made.coef = {"entropy": 0.1, "kl": 0.1}
    assert len(objective.live_rows(made)) == len(made)
    made.coef = {"entropy": 0.0, "kl": 0.0}
    assert len(objective.live_rows(made)) < len(made)


def test_a_sequence_without_a_token_that_counts_is_inert_for_every_loss() -> None:
    made = stored()
    made.keep_N = made.row_N != 2
    set_weights(made, "token_mean")
    assert np.setdiff1d(np.arange(len(made)), Objective.of(Weighted()).live_rows(made)).tolist() == [2]
