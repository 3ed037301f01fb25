"""Policy-gradient losses against slow ones written from the papers, case by case, and one number each worked by hand."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import slow_policy_losses as slow
import torch
from off_policy import factors, gradient_of, random_update, sequence

from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
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
from trinity_core.builtins.losses.sft import SFT
from trinity_core.builtins.losses.simplified_ppo import SimplifiedPPO
from trinity_core.builtins.losses.topr import TOPR
from trinity_core.builtins.losses.topr_token import TokenTOPR

torch.set_num_threads(1)
BOTH = {"clipped_high": "clip/high", "clipped_low": "clip/low"}
"""Cases by the statistic that counts them."""

CASES = {
    "ppo": (PPOClip(), slow.ppo, {}, (*BOTH, "inside", "outside, unclipped")),
    "ppo, clip-higher and dual": (
        PPOClip(clip_low=0.1, clip_high=0.28, dual_clip=3.0),
        slow.ppo,
        {"low": 0.1, "high": 0.28, "dual": 3.0},
        (*BOTH, "dual", "inside", "outside, unclipped"),
    ),
    "importance_sampling": (ImportanceSampling(), slow.importance_sampling, {}, ("far", "near")),
    "sft": (SFT(), slow.sft, {}, ("given", "sampled")),
    "gspo": (GSPO(), slow.gspo, {}, (*BOTH, "inside", "outside, unclipped")),
    "gspo, wide": (
        GSPO(clip_low=0.1, clip_high=0.2),
        slow.gspo,
        {"low": 0.1, "high": 0.2},
        (*BOTH, "inside", "outside, unclipped"),
    ),
    "cispo": (CISPO(), slow.cispo, {}, (*BOTH, "uncut", "cut at 0")),
    "cispo, two bounds": (
        CISPO(clip_low=0.3, clip_high=0.5),
        slow.cispo,
        {"low": 0.3, "high": 0.5},
        (*BOTH, "uncut", "cut above", "cut below"),
    ),
    "sapo": (SAPO(), slow.sapo, {}, ("positive", "negative", "zero", "faded")),
    "sapo, narrow": (
        SAPO(tau_pos=2.0, tau_neg=5.0),
        slow.sapo,
        {"positive": 2.0, "negative": 5.0},
        ("positive", "negative", "zero", "faded"),
    ),
    "opmd": (OPMD(), slow.opmd, {}, ("any",)),
    "opmd, untied": (OPMD(tau=0.0), slow.opmd, {"tau": 0.0}, ("any",)),
    "kimi_opmd": (KimiOPMD(), slow.kimi_opmd, {}, ("above the reference", "below the reference")),
    "kimi_opmd, loose": (
        KimiOPMD(tau=0.1),
        slow.kimi_opmd,
        {"tau": 0.1},
        ("above the reference", "below the reference"),
    ),
    "topr": (TOPR(), slow.topr, {}, ("tapered", "clipped_low", "succeeded", "no score")),
    "topr, a threshold": (
        TOPR(threshold=0.6),
        slow.topr,
        {"threshold": 0.6},
        ("tapered", "clipped_low", "succeeded", "no score"),
    ),
    "topr_token": (TokenTOPR(), slow.topr_token, {}, ("tapered", "clipped_low", "succeeded", "no score")),
    "simplified_ppo": (SimplifiedPPO(), slow.simplified_ppo, {}, (*BOTH, "inside", "above", "below", "dropped at 0")),
    "geo_mean": (GeoMean(), slow.geo_mean, {}, (*BOTH, "free")),
    "geo_mean, uneven": (
        GeoMean(clip_low=0.1, clip_high=0.6),
        slow.geo_mean,
        {"low": 0.1, "high": 0.6},
        (*BOTH, "free"),
    ),
    "dppo": (DPPO(), slow.dppo, {}, (*BOTH, "far, kept", "nobody sampled")),
    "dppo, capped": (DPPO(delta=0.3, cap=2.0), slow.dppo, {"delta": 0.3, "cap": 2.0}, (*BOTH, "far, kept", "capped")),
    "rec": (REC(), slow.rec, {}, ("inside",)),
    "rec, one_side": (REC(range="one_side"), slow.rec, {"range": "one_side"}, (*BOTH, "inside")),
    "rec, one_side, importance": (
        REC(range="one_side", weighting="importance"),
        slow.rec,
        {"range": "one_side", "weighting": "importance"},
        (*BOTH, "inside"),
    ),
    "rec, two_side": (REC(range="two_side"), slow.rec, {"range": "two_side"}, (*BOTH, "inside", "outside at 0")),
    "rec, ring": (REC(range="ring"), slow.rec, {"range": "ring"}, (*BOTH, "inside", "again")),
    "rec, advantage": (
        REC(weighting="advantage", temperature=0.7),
        slow.rec,
        {"weighting": "advantage", "temperature": 0.7},
        ("inside",),
    ),
    "rec, k2": (
        REC(range="two_side", regulariser="k2", coef=0.1),
        slow.rec,
        {"range": "two_side", "regulariser": "k2", "coef": 0.1},
        (*BOTH, "inside"),
    ),
    "rec, forward_kl": (
        REC(regulariser="forward_kl", coef=0.1),
        slow.rec,
        {"regulariser": "forward_kl", "coef": 0.1},
        ("inside",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loss_is_what_its_paper_says_token_by_token(case):
    loss, reference, options, cases = CASES[case]
    hit: Counter = Counter()
    for seed in range(8):
        batch, logp_N, sequences = random_update(seed)
        found, gradient_N, metrics = gradient_of(loss, batch, logp_N)
        seen: Counter = Counter()
        wanted, slopes = 0.0, []
        for one, factor in zip(sequences, factors(sequences, loss.reduction)):
            values, slope = reference(one, seen, **options)
            wanted += factor * sum(values)
            slopes += [factor * each for each in slope]
        assert found == pytest.approx(wanted, rel=1e-11, abs=1e-13)
        away = np.linalg.norm(gradient_N - slopes)
        assert away <= 1e-11 * np.linalg.norm(slopes)
        for name, statistic in BOTH.items():
            if statistic in metrics:
                assert metrics[statistic] == pytest.approx(seen[name] / len(logp_N))
            else:
                assert not seen[name]
        hit += seen
    assert not [name for name in cases if hit[name] < 5], hit


# --- one number each, by hand -----------------------------------------------------------------------------------------


def test_gspo_by_hand():
    """d = .2, −.1: mean .05, s = e^.05 = 1.051271. A = −1: 1.051271, and half of it at each of two tokens. A = 1: at most
    1.0004, without gradient."""
    value, gradient_N, metrics = sequence(GSPO(), d=[0.2, -0.1], advantage=-1)
    assert value == pytest.approx(1.051271, abs=1e-6) and gradient_N == pytest.approx([0.525636, 0.525636], abs=1e-6)
    assert metrics["clip/high"] == metrics["clip/low"] == 0
    value, gradient_N, metrics = sequence(GSPO(), d=[0.2, -0.1])
    assert value == pytest.approx(-1.0004) and gradient_N == [0, 0] and metrics["clip/high"] == 1


def test_cispo_by_hand():
    """r = 1.5 → 1.28: −1.28 · 1 · (−1) = 1.28, gradient −1.28; r = .5, no lower bound: −.5 · (−1) · (−1) = −.5, gradient .5."""
    value, gradient_N, metrics = sequence(CISPO(), d=[math.log(1.5)])
    assert (value, *gradient_N) == pytest.approx((1.28, -1.28)) and metrics["clip/high"] == 1
    value, gradient_N, metrics = sequence(CISPO(), d=[math.log(0.5)], advantage=-1)
    assert (value, *gradient_N) == pytest.approx((-0.5, 0.5)) and metrics["clip/low"] == 0


def test_sapo_by_hand():
    """r = 1: σ(0) · 4 = 2, slope 4 · ½ · ½ = 1. r = 2: σ(1) = .731059, · 4 = 2.924234, slope 4 · .731059 · .268941 · 2 =
    1.572895. A = −1: σ(1.05) = .740775, · 4 / 1.05 = 2.822000, slope 4 · .740775 · .259225 · 2 = 1.536220."""
    assert sequence(SAPO(), d=[0.0])[:2] == (pytest.approx(-2), pytest.approx([-1]))
    value, gradient_N, _ = sequence(SAPO(), d=[math.log(2)])
    assert (value, *gradient_N) == pytest.approx((-2.924234, -1.572895), abs=1e-6)
    value, gradient_N, _ = sequence(SAPO(), d=[math.log(2)], advantage=-1)
    assert (value, *gradient_N) == pytest.approx((2.822000, 1.536220), abs=1e-6)


def test_opmd_by_hand():
    """−2 · (−1) / (1 + 1) = 1, gradient −1; whoever sampled it."""
    assert sequence(OPMD(), d=[0.7], advantage=2)[:2] == (1, [-1])


def test_kimi_opmd_by_hand():
    """d = .2, .1 to the reference: D = .3. A = 1, τ = 2: 2 + ½ · 2 · .09 = 2.09; gradient −1 + 2 · .3 = −.4 at both tokens."""
    value, gradient_N, metrics = sequence(KimiOPMD(tau=2.0), d=[0.2, 0.1])
    assert value == pytest.approx(2.09) and gradient_N == pytest.approx([-0.4, -0.4])
    assert metrics["loss/policy"] == pytest.approx(2) and metrics["loss/tie"] == pytest.approx(0.09)


def test_topr_by_hand():
    """Σ d = −.7, α = e^−.7 = .496585. R = −1: −α · (−1) · (−1) at two tokens, −.993171, gradient .496585. R = 1: 2, gradient −1.
    Σ d = .7, R = −1: α = 1."""
    value, gradient_N, _ = sequence(TOPR(), d=[-0.5, -0.2], reward=-1)
    assert value == pytest.approx(-0.993171, abs=1e-6) and gradient_N == pytest.approx([0.496585] * 2, abs=1e-6)
    assert sequence(TOPR(), d=[-0.5, -0.2], reward=1)[:2] == (2, [-1, -1])
    value, gradient_N, metrics = sequence(TOPR(), d=[0.9, -0.2], reward=-1)
    assert (value, gradient_N) == (-2, [1, 1]) and metrics["clip/low"] == 1


def test_topr_token_by_hand():
    """e^−.5 = .606531 and e^−.2 = .818731; mean of −α: −.712631, gradients half of each."""
    value, gradient_N, _ = sequence(TokenTOPR(), d=[-0.5, -0.2], reward=-1)
    assert value == pytest.approx(-0.712631, abs=1e-6) and gradient_N == pytest.approx([0.303265, 0.409365], abs=1e-6)


def test_simplified_ppo_by_hand():
    """r = 1.2: −ln 1.2 = −.182322, gradient −1. 1.4 > 1.3 and .75 < 1 / 1.3 = .769231: nothing, whatever A."""
    value, gradient_N, _ = sequence(SimplifiedPPO(), d=[math.log(1.2)])
    assert (value, *gradient_N) == pytest.approx((-0.182322, -1), abs=1e-6)
    for advantage in (1, -1):
        for outside in (1.4, 0.75):
            value, gradient_N, metrics = sequence(SimplifiedPPO(), d=[math.log(outside)], advantage=advantage)
            assert (value, gradient_N) == (0, [0])
            assert metrics["clip/high" if advantage > 0 else "clip/low"] == 1
    assert sequence(SimplifiedPPO(), d=[math.log(0.78)])[1] == [-1]


def test_geo_mean_by_hand():
    """d = .9, −.1 and A = 1: .4, −.1, mean .15: −e^.15 = −1.161834, the half of it at the token that is not clipped. A = −1:
    neither is below −.4: mean .4, e^.4 = 1.491825, half at each."""
    value, gradient_N, metrics = sequence(GeoMean(), d=[0.9, -0.1])
    assert value == pytest.approx(-1.161834, abs=1e-6) and gradient_N == pytest.approx([0, -0.580917], abs=1e-6)
    assert metrics["clip/high"] == 0.5
    value, gradient_N, metrics = sequence(GeoMean(), d=[0.9, -0.1], advantage=-1)
    assert value == pytest.approx(1.491825, abs=1e-6) and gradient_N == pytest.approx([0.745912] * 2, abs=1e-6)
    assert metrics["clip/low"] == 0


def test_dppo_by_hand():
    """p_old = .5, p = .7: .2 > .15, so A = 1 is dropped. A = −1: 1.4 · ln .7 = 1.4 · (−.356675) = −.499345, gradient 1.4.
    p_old = .01, p = .05: a ratio of 5, but .04 apart: kept, 5 · 2.995732 = 14.978661, gradient −5."""
    value, gradient_N, metrics = sequence(DPPO(), d=[math.log(1.4)], logp=math.log(0.7))
    assert (value, gradient_N) == (0, [0]) and metrics["clip/high"] == 1
    value, gradient_N, _ = sequence(DPPO(), d=[math.log(1.4)], logp=math.log(0.7), advantage=-1)
    assert (value, *gradient_N) == pytest.approx((-0.499345, 1.4), abs=1e-6)
    value, gradient_N, _ = sequence(DPPO(), d=[math.log(5)], logp=math.log(0.05))
    assert (value, *gradient_N) == pytest.approx((14.978661, -5), abs=1e-6)
    value, gradient_N, metrics = sequence(DPPO(), d=[math.log(0.6)], logp=math.log(0.3), advantage=-1)
    assert (value, gradient_N) == (0, [0]) and metrics["clip/low"] == 1


def test_rec_by_hand():
    """logp = −1. Plain: −A logp = 1, gradient −1. Ring: A = 1 counts at r = .3 (≤ .4) and not at .5; A = −1 counts at 3.1
    (≥ 3) and not at 2. Weighted by r = .5: .5. By e^(A / T) = e^(1 / 2) = 1.648721. k2 with c = .1 at d = .5: 1 + .025,
    gradient −1 + 2 · .1 · .5 = −.9. forward_kl: 1 + .1, gradient −1.1."""

    def at(r, advantage=1, **options):
        value, gradient_N, _ = sequence(REC(**options), d=[math.log(r)], advantage=advantage)
        return value, gradient_N[0]

    assert at(0.5) == (1, -1)
    assert at(0.3, range="ring") == (1, -1) and at(0.5, range="ring") == (0, 0)
    assert at(3.1, advantage=-1, range="ring") == (-1, 1) and at(2, advantage=-1, range="ring") == (0, 0)
    assert at(0.5, weighting="importance") == pytest.approx((0.5, -0.5))
    assert at(0.5, weighting="advantage", temperature=2.0) == pytest.approx((1.648721, -1.648721), abs=1e-6)
    assert at(math.exp(0.5), regulariser="k2", coef=0.1) == pytest.approx((1.025, -0.9))
    assert at(0.5, regulariser="forward_kl", coef=0.1) == pytest.approx((1.1, -1.1))


def test_ppo_importance_sampling_and_sft_by_hand():
    """r = 1.5: clipped −1.2, no gradient; unclipped −1.5. A = −1, r = 5, dual clip 3: 3, no gradient. −logp = 1."""
    assert sequence(PPOClip(), d=[math.log(1.5)])[:2] == (pytest.approx(-1.2), [0])
    assert sequence(PPOClip(dual_clip=3.0), d=[math.log(5)], advantage=-1)[:2] == (pytest.approx(3), [0])
    value, gradient_N, _ = sequence(ImportanceSampling(), d=[math.log(1.5)])
    assert (value, *gradient_N) == pytest.approx((-1.5, -1.5))
    assert sequence(SFT(), d=[0.3])[:2] == (1, [-1])


@pytest.mark.parametrize("options", [{"regulariser": "k2", "coef": 0.5}, {"regulariser": "forward_kl", "coef": 0.5}])
def test_a_regulariser_reaches_tokens_without_credit(options):
    """So such a loss does not say that no credit means no gradient, and none of its sequences is left out as inert."""
    update = random_update(0)[0]
    set_weights(update, "token_mean")
    update.advantage_N = np.zeros(update.num_actions)
    assert REC().claims == REC.claims and "inert_at_zero_advantage" not in REC(**options).claims
    assert len(Objective.of(REC()).live_rows(update)) == 0
    assert len(Objective.of(REC(**options)).live_rows(update)) == len(update)
