"""What policy-gradient losses refuse, survive and compose with."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from off_policy import gradient_of, random_update, sequence

from trinity_core.builtins.corrections.truncated_is import TruncatedIS
from trinity_core.builtins.losses.cispo import CISPO
from trinity_core.builtins.losses.dppo import DPPO
from trinity_core.builtins.losses.geo_mean import GeoMean
from trinity_core.builtins.losses.gspo import GSPO
from trinity_core.builtins.losses.importance_sampling import ImportanceSampling
from trinity_core.builtins.losses.kimi_opmd import KimiOPMD
from trinity_core.builtins.losses.opmd import OPMD
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.builtins.losses.rec import REC
from trinity_core.builtins.losses.sapo import SAPO
from trinity_core.builtins.losses.simplified_ppo import SimplifiedPPO
from trinity_core.builtins.losses.topr import TOPR
from trinity_core.builtins.losses.topr_token import TokenTOPR
from trinity_core.errors import ConfigError
from trinity_core.testing.contracts import loss as contract

torch.set_num_threads(1)
RATIO_LOSSES = (
    PPOClip(),
    ImportanceSampling(),
    GSPO(),
    CISPO(),
    SAPO(),
    SimplifiedPPO(),
    GeoMean(),
    DPPO(),
    TOPR(),
    TokenTOPR(),
    REC(range="one_side", weighting="importance"),
    REC(range="ring"),
)
ALL = (*RATIO_LOSSES, OPMD(), KimiOPMD(), REC(), REC(weighting="advantage"), REC(regulariser="k2", coef=0.5))


def label(loss):
    return type(loss).__name__


REFUSED = [
    (GSPO, {"clip_low": -1e-4}, "0 or more"),
    (GSPO, {"clip_high": -1e-4}, "0 or more"),
    (CISPO, {"clip_high": -0.1}, "0 or more"),
    (CISPO, {"clip_low": -0.1}, "0 or more"),
    (SAPO, {"tau_pos": 0.0}, "above 0"),
    (SAPO, {"tau_neg": -1.0}, "above 0"),
    (OPMD, {"tau": -0.1}, "0 or more"),
    (KimiOPMD, {"tau": -0.1}, "0 or more"),
    (SimplifiedPPO, {"epsilon": 0.0}, "above 0"),
    (GeoMean, {"clip_low": -0.4}, "0 or more"),
    (GeoMean, {"clip_high": -0.4}, "0 or more"),
    (DPPO, {"delta": 0.0}, "above 0 and below 1"),
    (DPPO, {"delta": 1.0}, "above 0 and below 1"),
    (DPPO, {"cap": 0.9}, "1 or more"),
    (REC, {"range": "both"}, "one_side, two_side, ring"),
    (REC, {"weighting": "ratio"}, "importance, advantage"),
    (REC, {"regulariser": "k3", "coef": 0.1}, "k2, forward_kl"),
    (REC, {"regulariser": "k2"}, "both or neither"),
    (REC, {"coef": 0.1}, "both or neither"),
    (REC, {"regulariser": "k2", "coef": -0.1}, "0 or more"),
    (REC, {"low": 0.0}, "low_prime"),
    (REC, {"low": 0.7}, "low_prime"),
    (REC, {"high": 3.0}, "high_prime"),
    (REC, {"temperature": 0.0}, "above 0"),
]


@pytest.mark.parametrize(("loss", "options", "words"), REFUSED)
def test_an_option_out_of_range_is_refused_with_its_range(loss, options, words):
    with pytest.raises(ConfigError, match=words):
        loss(**options)


@pytest.mark.parametrize("loss", ALL, ids=label)
@pytest.mark.parametrize("d", [1000.0, -1000.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_policy_that_is_worlds_away_gives_finite_numbers(loss, d, sign):
    value, gradient_N, _ = sequence(loss, d=[d, 0.1], advantage=sign, reward=sign)
    assert math.isfinite(value) and np.isfinite(gradient_N).all()


@pytest.mark.parametrize("loss", RATIO_LOSSES, ids=label)
def test_on_policy_nothing_is_clipped(loss):
    """Old is the very forward, and so is the sampler."""
    for sign in (1, -1):
        _, _, metrics = sequence(loss, d=[0.0, 0.0, 0.0], advantage=sign, reward=sign, old="forward")
        assert metrics.get("clip/high", 0) == metrics.get("clip/low", 0) == 0
        assert metrics.get("ratio", 1.0) == 1.0


@pytest.mark.parametrize("loss", ALL, ids=label)
def test_a_correction_weighs_each_token_and_no_regulariser(loss):
    """Every value is per token, so truncated importance sampling composes with all: a sampler that saw half the old
    probability (w = 2 at the cap) doubles the policy's terms and nothing else."""
    batch, logp_N, _ = random_update(0)
    known_N = ~np.isnan(batch.sampler_logp_N)
    old_N = batch.measured["old_logp"]
    if not isinstance(loss, DPPO):  # whose own ratio is to the sampler
        batch.sampler_logp_N = np.where(known_N, old_N - math.log(2), np.nan)
        _, _, plain = gradient_of(loss, batch, logp_N)
        _, _, weighed = gradient_of(loss, batch, logp_N, corrections=[TruncatedIS(cap=2.0)])
        batch.keep_N = batch.keep_N & ~known_N  # what nobody sampled keeps its weight
        given = gradient_of(loss, batch, logp_N)[2]["loss/policy"] if (~known_N).any() else 0.0
        assert weighed["loss/policy"] - given == pytest.approx(2 * (plain["loss/policy"] - given))
        for name in ("loss/tie", "loss/regulariser"):
            assert plain.get(name) == weighed.get(name)
    else:
        assert np.isfinite(gradient_of(loss, batch, logp_N, corrections=[TruncatedIS()])[0])


@pytest.mark.parametrize("loss", [TOPR(), TokenTOPR()], ids=label)
def test_an_attempt_without_a_score_has_no_part_in_topr(loss):
    value, gradient_N, _ = sequence(loss, d=[-0.5, 0.5], reward=math.nan)
    assert (value, gradient_N) == (0, [0, 0])


def test_topr_reads_the_reward_and_no_advantage():
    values = [sequence(TOPR(), d=[-0.5], advantage=advantage, reward=-1)[0] for advantage in (1, -3)]
    assert values[0] == values[1] != 0


def test_dppo_takes_tokens_that_nobody_sampled_as_ratio_1():
    """−2 · 1 · (−1) = 2 however far the old policy is; never NaN."""
    batch, logp_N, _ = random_update(0)
    given_N = np.isnan(batch.sampler_logp_N)
    batch.advantage_N[given_N], logp_N[given_N] = 2.0, -1.0
    batch.measured["old_logp"][given_N] = -9.0
    batch.keep_N = given_N
    value, gradient_N, metrics = gradient_of(DPPO(), batch, logp_N)
    assert value == pytest.approx(2 * given_N.mean()) and metrics["clip/high"] == 0
    assert gradient_N[given_N] == pytest.approx(-2 / len(given_N)) and not gradient_N[~given_N].any()


def test_dppo_reads_the_sampler_and_not_the_old_policy():
    batch, logp_N, _ = random_update(0)
    before = gradient_of(DPPO(), batch, logp_N)
    batch.measured["old_logp"] = batch.measured["old_logp"] - 1
    assert gradient_of(DPPO(), batch, logp_N)[0] == before[0]
    batch.sampler_logp_N = batch.sampler_logp_N - 0.1
    assert gradient_of(DPPO(), batch, logp_N)[0] != before[0]


def test_gspo_has_one_ratio_per_experience_whatever_the_attempt():
    """An attempt of two experiences, one above the range and one inside: only the first is clipped."""
    batch, logp_N, sequences = random_update(0)
    two = [one for one in sequences if one.attempt == 2]
    assert len(two) == 2
    keep_B = np.array([one.attempt == 2 for one in sequences])
    rows = np.flatnonzero(keep_B)
    part, logp_N = batch.select(rows), logp_N[keep_B[batch.row_N]]
    part.advantage_N = np.ones(part.num_actions)
    part.measured["old_logp"] = logp_N - np.where(part.row_N == 0, 0.01, 0.0)
    _, gradient_N, metrics = gradient_of(GSPO(), part, logp_N)
    assert metrics["clip/high"] == pytest.approx(25 / 31)
    assert not gradient_N[part.row_N == 0].any() and gradient_N[part.row_N == 1] == pytest.approx(-1 / 31)


VARIANTS = [
    ({"range": "one_side"}, {"inert_at_zero_advantage", "policy_gradient_at_ratio_1", "reads_old_logp"}),
    ({"range": "two_side"}, {"inert_at_zero_advantage", "policy_gradient_at_ratio_1", "reads_old_logp"}),
    ({"range": "ring"}, {"inert_at_zero_advantage", "policy_gradient_at_ratio_1", "reads_old_logp"}),
    ({"weighting": "importance"}, {"inert_at_zero_advantage", "policy_gradient_at_ratio_1", "reads_old_logp"}),
    ({"weighting": "advantage"}, {"inert_at_zero_advantage"}),
    ({"regulariser": "k2", "coef": 0.3}, {"policy_gradient_at_ratio_1", "reads_old_logp"}),
    ({"regulariser": "forward_kl", "coef": 0.3}, set()),
    ({"range": "ring", "weighting": "importance", "regulariser": "k2", "coef": 0.1}, None),
]


@pytest.mark.parametrize(("options", "claims"), VARIANTS)
def test_every_member_of_the_rec_family_keeps_the_contract_of_losses(options, claims):
    """Each member's claims are true, and no other is."""
    if claims is None:
        claims = {"policy_gradient_at_ratio_1", "reads_old_logp"}
    member = REC(**options)
    assert member.claims == claims
    for rule in contract.RULES.values():
        rule(member)


def test_rec_measures_the_old_policy_only_where_a_part_reads_it():
    assert (
        REC().needs() == REC(weighting="advantage").needs() == REC(regulariser="forward_kl", coef=1.0).needs() == set()
    )
    for options in ({"range": "ring"}, {"weighting": "importance"}, {"regulariser": "k2", "coef": 1.0}):
        assert REC(**options).needs() == {"old_logp"}
