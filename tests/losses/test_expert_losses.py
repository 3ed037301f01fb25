"""Imitation, alone and beside the policy's own attempts: against the paper one token at a time, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from walk_tokens import flat, kernel, logp_of, walk, world_for

from trinity_core.algo.loss_batch import LossBatch
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.losses.chord import Chord
from trinity_core.builtins.losses.mix import Mix
from trinity_core.builtins.losses.sft_is import SFTImportance
from trinity_core.builtins.losses.sft_phi import SFTPhi
from trinity_core.config.build import build
from trinity_core.config.schedule import at_step
from trinity_core.config.schema import PeakSchedule
from trinity_core.errors import ConfigError
from trinity_core.testing.contracts import loss as contract

ALL = (SFTImportance(), SFTPhi(), SFTPhi(cutoff=0.2), Mix(), Mix(mu=0.6, clip_high=0.05), Chord(), Chord(mu=0.7))


def own_token(loss, token):
    """PPO's value and gradient."""
    a, r = token.advantage, token.ratio
    clipped = min(max(r, 1 - loss.clip_low), 1 + loss.clip_high)
    return max(-a * r, -a * clipped), (-a * r if -a * r >= -a * clipped else 0.0)


def expert_token(loss, token):
    """Value and gradient of imitation."""
    if isinstance(loss, Mix):
        return -token.logp, -1.0
    weight = token.p if isinstance(loss, SFTImportance) else token.p * (1 - token.p)
    cutoff = getattr(loss, "cutoff", 1.0)
    if token.p > cutoff:
        return -weight * math.log(cutoff), 0.0
    return -weight * token.logp, -weight


def reference(loss, tokens):
    if isinstance(loss, SFTImportance | SFTPhi):
        parts = [(1.0, tokens, expert_token)]
    else:
        parts = [
            (1 - loss.mu, [t for t in tokens if not t.expert], own_token),
            (loss.mu, [t for t in tokens if t.expert], expert_token),
        ]
    total, gradient = 0.0, {}
    for coef, members, compute in parts:
        for token in members:
            value, slope = compute(loss, token)
            total += coef * value / len(members)
            gradient[id(token)] = coef * slope / len(members)
    return total, [gradient[id(token)] for token in tokens]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_an_imitating_loss_is_the_papers(loss, seed):
    world = world_for(loss, seed, also={"expert"})
    logp = logp_of(world)
    tokens = walk(world.batch, logp)
    assert {token.expert for token in tokens} == {True, False}
    value, gradient = reference(loss, tokens)
    found = kernel(loss, world.batch, logp)
    assert found.loss == pytest.approx(value, rel=1e-12)
    assert found.gradient == pytest.approx(gradient, rel=1e-10, abs=1e-15)


@pytest.mark.parametrize(
    ("loss", "value", "gradient"),
    [
        (SFTImportance(), 0.346574, -0.25),  # p = 1/4: .25 · ln 4 = .25 · 1.386294
        (SFTPhi(), 0.259930, -0.1875),  # 1/4 · 3/4 = 3/16; 3/16 · 1.386294
        (SFTPhi(cutoff=0.2), 0.301770, 0.0),  # 3/16 · ln 5 = 3/16 · 1.609438, likelier than the cutoff
        (SFTPhi(cutoff=0.3), 0.259930, -0.1875),
        (Mix(mu=0.3), 0.3 * 1.386294, -0.3),
        (Chord(mu=0.3), 0.3 * 0.259930, -0.3 * 0.1875),
    ],
)
def test_imitation_by_hand(loss, value, gradient):
    world = world_for(loss, 0, also={"expert"})
    expert = int(np.flatnonzero(world.batch.population_B == 2)[0])
    batch, logp = flat(world, rows=[expert], logp=math.log(0.25), old=math.log(0.25))
    set_weights(batch, "token_mean")
    found = kernel(loss, batch, logp)
    assert found.loss == pytest.approx(value, abs=1e-6)
    assert sum(found.gradient) == pytest.approx(gradient, abs=1e-12)


@pytest.mark.parametrize("loss", [Mix(mu=0.3), Chord(mu=0.3)], ids=repr)
def test_own_tokens_are_clipped_as_ppo(loss):
    """r = 1.5, A = 1: −1.2, no gradient; A = −1: 1.5 and its gradient. Times 1 − μ = .7."""
    world = world_for(loss, 0)
    row = int(np.flatnonzero(world.batch.population_B == 1)[2])
    for advantage, value, gradient, high in ((1.0, -1.2, 0.0, 1.0), (-1.0, 1.5, 1.5, 0.0)):
        batch, logp = flat(world, rows=[row], logp=-1.0, old=-1.0 - math.log(1.5), advantage=advantage)
        set_weights(batch, "token_mean")
        found = kernel(loss, batch, logp)
        assert found.loss == pytest.approx(0.7 * value)
        assert sum(found.gradient) == pytest.approx(0.7 * gradient)
        assert found.stats["clip/high"] == high


@pytest.mark.parametrize("loss", [Mix(mu=0.3), Chord(mu=0.3)], ids=repr)
def test_an_empty_population_gives_0_and_leaves_the_others_weight(loss):
    world = world_for(loss, 0)
    logp = np.array(logp_of(world))
    member = world.batch.population_B
    both = kernel(loss, world.batch, logp)
    shares = {name: both.stats[f"loss/{name}"] for name in ("policy", "expert")}
    for index, name, other in ((1, "policy", "expert"), (2, "expert", "policy")):
        rows = np.flatnonzero(member == index)
        batch = world.batch.select(rows)
        set_weights(batch, loss.reduction)
        inside = np.isin(world.batch.row_N, rows)
        found = kernel(loss, batch, logp[inside])
        assert found.stats[f"loss/{other}"] == 0.0
        assert found.stats[f"loss/{name}"] == pytest.approx(shares[name], rel=1e-12)
        assert found.gradient == pytest.approx(np.array(both.gradient)[inside].tolist(), rel=1e-12)


def test_corrections_multiply_the_policys_term_alone():
    terms = {}
    for loss in (Mix(), Chord()):
        world = world_for(loss, 0)
        objective = Objective.of(loss)
        output = loss(LossBatch(world.batch, world.leaves(objective), loss.needs()))
        terms[type(loss)] = {term.name: (term.policy, term.over) for term in output.terms}
    assert terms[Mix] == terms[Chord] == {"policy": (True, "own"), "expert": (False, "expert")}


@pytest.mark.parametrize("loss", [Mix(), Chord()], ids=repr)
def test_clipping_is_counted_over_own_tokens_alone(loss):
    world = world_for(loss, 0)
    batch, logp = flat(world, logp=-1.0, old=-1.0 - math.log(1.5), advantage=1.0)
    set_weights(batch, "token_mean")
    assert kernel(loss, batch, logp).stats["clip/high"] == 1.0


# --- the schedule of μ ---


def test_the_weight_of_chord_rises_falls_and_stays():
    """Warm-up .9 · 0/2, .9 · 1/2; peak; half a cosine over 4: ½ (.9 + .1) in its middle; then the valley."""
    loss = Chord(mu=PeakSchedule(0.9, 0.1, warmup=2, decay=4))
    found = [at_step(loss, step).mu for step in (0, 1, 2, 4, 6, 100)]
    assert found == pytest.approx([0.0, 0.45, 0.9, 0.5, 0.1, 0.1], abs=1e-15)


def test_a_schedule_without_a_step_is_refused():
    loss = Chord(mu=PeakSchedule(0.9, 0.1))
    world = world_for(loss, 0)
    with pytest.raises(ConfigError, match="at_step"):
        kernel(loss, world.batch, logp_of(world))
    assert kernel(at_step(loss, 0), world.batch, logp_of(world)).loss == pytest.approx(
        kernel(Chord(mu=0.1), world.batch, logp_of(world)).loss
    )


def test_a_config_says_the_weight_as_a_number_or_as_a_schedule():
    assert build(Chord, {"mu": 0.3}, "loss", "chord").mu == 0.3
    schedule = {"peak": 0.9, "valley": 0.05, "warmup": 20, "decay": 200}
    assert build(Chord, {"mu": schedule}, "loss", "chord").mu == PeakSchedule(0.9, 0.05, 20, 200)
    with pytest.raises(ConfigError, match=r"loss\.mu: .*numbers of steps are 0 or more"):
        build(Chord, {"mu": {"peak": 0.9, "valley": 0.1, "warmup": -1}}, "loss", "chord")
    with pytest.raises(ConfigError, match=r"loss\.mu\.peek"):
        build(Chord, {"mu": {"peek": 0.9, "valley": 0.1}}, "loss", "chord")


# --- all of them ---


@pytest.mark.parametrize("rule", contract.RULES)
@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_the_contract_of_losses_holds_for_imitation(loss, rule):
    contract.RULES[rule](loss)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: SFTPhi(cutoff=0.0), "loss.cutoff"),
        (lambda: SFTPhi(cutoff=1.1), "loss.cutoff"),
        (lambda: Mix(mu=1.1), "loss.mu"),
        (lambda: Mix(clip_low=-0.1), "loss.clip_low"),
        (lambda: Chord(mu=-0.1), "loss.mu"),
        (lambda: Chord(mu=PeakSchedule(1.5, 0.1)), "loss.mu"),
        (lambda: Chord(clip_high=-0.1), "loss.clip_low"),
    ],
)
def test_a_weight_without_meaning_is_refused(make, field):
    with pytest.raises(ConfigError, match=field):
        make()
