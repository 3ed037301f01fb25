"""Losses over pairs, and the regression of SPPO: against the papers one token at a time, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from walk_tokens import flat, kernel, logp_of, walk, world_for

from trinity_core.algo.cut import cut
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.losses.dpo import DPO
from trinity_core.builtins.losses.hinge import Hinge
from trinity_core.builtins.losses.ipo import IPO
from trinity_core.builtins.losses.sppo import SPPO
from trinity_core.errors import ConfigError
from trinity_core.testing.contracts import loss as contract
from trinity_core.testing.rules import NotApplicable

PAIR_LOSSES = (DPO(), DPO(beta=0.5, label_smoothing=0.1), IPO(), IPO(beta=1.0), Hinge(), Hinge(beta=2.0))


def sigma(x):
    return 1 / (1 + math.exp(-x))


def by_pair(loss, delta):
    """Value of a pair and its derivative by Δ, from the papers."""
    b = loss.beta
    if isinstance(loss, DPO):
        e = loss.label_smoothing
        value = -(1 - e) * math.log(sigma(b * delta)) - e * math.log(sigma(-b * delta))
        return value, -(1 - e) * b * sigma(-b * delta) + e * b * sigma(b * delta)
    if isinstance(loss, IPO):
        return (delta - 1 / (2 * b)) ** 2, 2 * (delta - 1 / (2 * b))
    return max(0.0, 1 - b * delta), -b if b * delta < 1 else 0.0


def reference(loss, batch, tokens):
    """Mean over pairs, summed one token at a time."""
    total, gradient = 0.0, [0.0] * len(tokens)
    pairs = batch.pairs_P2.tolist()
    for chosen, rejected in pairs:
        delta = 0.0
        for token in tokens:
            if token.sequence == chosen:
                delta += token.logp - token.ref
            if token.sequence == rejected:
                delta -= token.logp - token.ref
        value, slope = by_pair(loss, delta)
        total += value / len(pairs)
        for n, token in enumerate(tokens):
            gradient[n] += slope / len(pairs) * ((token.sequence == chosen) - (token.sequence == rejected))
    return total, gradient


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=repr)
def test_a_pair_loss_is_the_papers(loss, seed):
    world = world_for(loss, seed)
    logp = logp_of(world)
    value, gradient = reference(loss, world.batch, walk(world.batch, logp))
    found = kernel(loss, world.batch, logp)
    assert found.loss == pytest.approx(value, rel=1e-12, abs=1e-13)
    assert found.gradient == pytest.approx(gradient, rel=1e-10, abs=1e-13)


def one_pair(chosen, rejected):
    """A pair: four tokens that share ``chosen`` nats over the reference, and one that has all ``rejected``."""
    world = world_for(DPO(), 0)
    last = [int(row) for row in world.batch.pairs_P2[-1]]  # group f: lengths 4 and 1
    gain = np.array([chosen / 4] * 4 + [rejected])
    batch, logp = flat(world, rows=last, logp=-2.0 + gain, ref=-2.0)
    set_weights(batch, "token_mean")
    return batch, logp


@pytest.mark.parametrize(
    ("loss", "value", "slope"),
    [
        # Δ = 1 − (−1) = 2, β Δ = .2: ln(1 + e^−.2) = ln 1.818731 = .598139; −.1 σ(−.2) = −.1 · .450166
        (DPO(), 0.598139, -0.0450166),
        # .9 · .598139 + .1 · ln(1 + e^.2) = .538325 + .1 · .798139; −.1 (.9 · .450166 − .1 · .549834)
        (DPO(label_smoothing=0.1), 0.618139, -0.0350166),
        # (2 − 1 / .2)² = 9; 2 (2 − 5) = −6
        (IPO(), 9.0, -6.0),
        # 1 − .2 = .8; −.1
        (Hinge(), 0.8, -0.1),
        # β Δ = 2 ≥ 1: wide enough
        (Hinge(beta=1.0), 0.0, 0.0),
    ],
)
def test_a_pair_worked_by_hand(loss, value, slope):
    batch, logp = one_pair(1.0, -1.0)
    found = kernel(loss, batch, logp)
    assert found.loss == pytest.approx(value, abs=1e-6)
    assert found.gradient == pytest.approx([slope] * 4 + [-slope], abs=1e-6)


@pytest.mark.parametrize(("loss", "value"), [(DPO(), math.log(2)), (IPO(), 25.0), (Hinge(), 1.0)])
def test_at_the_reference_a_pair_loss_knows_nothing_yet(loss, value):
    """Δ = 0: −ln σ(0) = ln 2 = .693147; (0 − 5)² = 25; 1 − 0 = 1."""
    world = world_for(loss, 1)
    logp = logp_of(world)
    world.batch.measured["ref_logp"] = np.array(logp)
    found = kernel(loss, world.batch, logp)
    assert found.loss == pytest.approx(value, abs=1e-12)
    assert DPO() != loss or abs(found.loss - 0.693147) < 1e-6


@pytest.mark.parametrize("loss", [DPO(), IPO(), Hinge()], ids=repr)
def test_pairs_are_whole_whatever_the_micro_batch(loss):
    world = world_for(loss, 2)
    objective = Objective.of(loss)
    whole = world.gradient(objective)
    assert len(world.batch.pairs_P2) == 3
    for budget in (1, 6, 20):
        cuts = cut(world.batch, scope=objective.scope, max_tokens=budget)
        parts = world.gradient(objective, cuts=cuts)
        assert sum(len(world.batch.select(rows).pairs_P2) for rows in cuts) == 3
        assert parts.loss == pytest.approx(whole.loss, rel=1e-12)
        assert whole.differs(parts) < 1e-12
    assert len(cut(world.batch, scope="pair", max_tokens=1)) > 1


@pytest.mark.parametrize("loss", [DPO(), IPO(), Hinge()], ids=repr)
def test_a_margin_of_any_size_is_felt(loss):
    """The worse side leads by 300 nats: nothing is clamped, and the gradient is that of the formula."""
    batch, logp = one_pair(-200.0, 100.0)
    slope = {DPO: -0.1, IPO: 2 * (-300 - 5), Hinge: -0.1}[type(loss)]  # −β σ(30) → −β
    assert kernel(loss, batch, logp).gradient == pytest.approx([slope] * 4 + [-slope])


def test_metrics_are_rewards_in_units_of_beta():
    """β · 1 = .1 chosen, β · −1 = −.1 rejected, margin .2, won."""
    for loss in (DPO(), IPO(), Hinge()):
        found = kernel(loss, *one_pair(1.0, -1.0)).stats
        names = ("chosen", "rejected", "margin", "accuracy")
        assert [found[f"metric/{name}"] for name in names] == pytest.approx([0.1, -0.1, 0.2, 1.0])
        assert kernel(loss, *one_pair(-1.0, 1.0)).stats["metric/accuracy"] == 0.0


def test_sequences_without_a_pair_have_no_gradient():
    world = world_for(DPO(), 0)
    found = kernel(DPO(), world.batch, logp_of(world))
    paired = np.isin(world.batch.row_N, world.batch.pairs_P2)
    assert paired.any() and not paired.all()
    assert np.array_equal(np.array(found.gradient) != 0, paired)


# --- SPPO ---


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss", [SPPO(), SPPO(eta=2.0)], ids=repr)
def test_sppo_is_the_papers(loss, seed):
    """(log π/π_t (y) − η (P̂ − ½))² summed one token at a time; an attempt of two sequences weighs as one."""
    world = world_for(loss, seed)
    logp = logp_of(world)
    tokens = walk(world.batch, logp)
    sequences: dict[int, list[int]] = {}
    for n, token in enumerate(tokens):
        sequences.setdefault(token.sequence, []).append(n)
    of_attempt: dict[int, list[int]] = {}
    for sequence, members in sequences.items():
        of_attempt.setdefault(tokens[members[0]].attempt, []).append(sequence)
    value, gradient = 0.0, [0.0] * len(tokens)
    for attempt in of_attempt.values():
        weight = 1 / len(of_attempt) / len(attempt)
        for sequence in attempt:
            moved, credit = 0.0, 0.0
            for n in sequences[sequence]:
                moved += tokens[n].logp - tokens[n].old
                credit += tokens[n].advantage / len(sequences[sequence])
            away = moved - loss.eta * credit
            value += weight * away**2
            for n in sequences[sequence]:
                gradient[n] = weight * 2 * away
    assert max(len(attempt) for attempt in of_attempt.values()) == 2
    found = kernel(loss, world.batch, logp)
    assert found.loss == pytest.approx(value, rel=1e-12)
    assert found.gradient == pytest.approx(gradient, rel=1e-10)


def test_sppo_by_hand():
    """Four tokens of .125: moved .5; p̂ − ½ = .25 with η = 10: target 2.5. (.5 − 2.5)² = 4, slope 2 · −2 = −4. Past the target,
    moved 4.5: (4.5 − 2.5)² = 4, slope +4."""
    world = world_for(SPPO(), 0, also={"pairs"})
    row = int(world.batch.pairs_P2[-1][0])
    for moved, slope in ((0.5, -4.0), (4.5, 4.0)):
        batch, logp = flat(world, rows=[row], logp=-2.0 + moved / 4, old=-2.0, advantage=0.25)
        set_weights(batch, SPPO().reduction)
        found = kernel(SPPO(eta=10.0), batch, logp)
        assert found.loss == pytest.approx(4.0)
        assert found.gradient == pytest.approx([slope] * 4)
        assert (found.stats["metric/moved"], found.stats["metric/target"]) == pytest.approx((moved, 2.5))


def test_sppo_clamps_nothing():
    """Σ d = −400 against a target of 500: (−900)², slope −1800."""
    world = world_for(SPPO(), 0, also={"pairs"})
    batch, logp = flat(world, rows=[int(world.batch.pairs_P2[-1][0])], logp=-102.0, old=-2.0, advantage=0.5)
    set_weights(batch, SPPO().reduction)
    found = kernel(SPPO(), batch, logp)
    assert found.loss == pytest.approx(810000.0) and found.gradient == pytest.approx([-1800.0] * 4)


# --- all of them ---


@pytest.mark.parametrize("rule", contract.RULES)
@pytest.mark.parametrize("loss", [*PAIR_LOSSES, SPPO(eta=2.0)], ids=repr)
def test_the_contract_holds_at_other_options_too(loss, rule):
    try:
        contract.RULES[rule](loss)
    except NotApplicable:
        pytest.skip("not applicable")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: DPO(beta=0.0), "loss.beta"),
        (lambda: DPO(label_smoothing=0.5), "loss.label_smoothing"),
        (lambda: IPO(beta=-1.0), "loss.beta"),
        (lambda: Hinge(beta=0.0), "loss.beta"),
        (lambda: SPPO(eta=0.0), "loss.eta"),
    ],
)
def test_a_value_without_meaning_is_refused(make, field):
    with pytest.raises(ConfigError, match=field):
        make()
