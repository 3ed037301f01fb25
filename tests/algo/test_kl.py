"""KL estimators on five tokens, enumerated: values, and whose gradient each one has on-policy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trinity_core.algo import kl
from trinity_core.algo.objective import Objective
from trinity_core.builtins.losses.sft import SFT
from trinity_core.config.schema import Kl
from trinity_core.errors import ConfigError, DataError

torch.set_num_threads(1)
LOGITS = [0.3, -1.2, 0.8, 0.1, -0.4]
REF = torch.tensor([0.1, 0.4, -0.9, 0.7, -0.2], dtype=torch.float64).log_softmax(-1)
OLD = torch.tensor([0.5, 0.2, 0.5, -0.3, -0.4], dtype=torch.float64).log_softmax(-1)
EXACT = 1e-6


def policy():
    logits_V = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    return logits_V, logits_V.log_softmax(-1)


def gradient(value, logits_V):
    return torch.autograd.grad(value, logits_V)[0]


def differentiated(value_of):
    """Value and gradient of ``value_of(log π)``, everything differentiated."""
    logits_V, logp_V = policy()
    value = value_of(logp_V)
    return value.item(), gradient(value, logits_V)


def term(estimator, old=None):
    """What sampling from ``old`` (default: the policy itself) and differentiating the term gives on average."""
    logits_V, logp_V = policy()
    from_V = logp_V.detach() if old is None else old
    values_V = kl.estimate(estimator, logp_V, REF, ratio=(logp_V - from_V).exp())
    value = (from_V.exp() * values_V).sum()
    return value.item(), gradient(value, logits_V)


def reward(estimator):
    """What the policy gradient makes of it in the reward: E[k ∇logp], k a number."""
    logits_V, logp_V = policy()
    values_V = kl.estimate(estimator, logp_V.detach(), REF)
    return gradient((logp_V.detach().exp() * values_V * logp_V).sum(), logits_V)


KL = differentiated(lambda logp_V: (logp_V.exp() * (logp_V - REF)).sum())
"""KL(π ‖ ref) and its gradient."""
REVERSED = differentiated(lambda logp_V: (REF.exp() * (REF - logp_V)).sum())
"""KL(ref ‖ π) and its gradient."""
VARIATION = differentiated(lambda logp_V: (logp_V.exp() - REF.exp()).abs().sum())
"""Σ|π − ref| and its gradient."""


def away(found, wanted):
    return float((found - wanted).abs().max())


# --- values ---


@pytest.mark.parametrize("estimator", ["k1", "k3", "corrected_k3"])
def test_the_unbiased_estimators_have_the_kl_as_their_mean(estimator):
    assert term(estimator)[0] == pytest.approx(KL[0], abs=EXACT)


@pytest.mark.parametrize("estimator", ["k2", "abs"])
def test_the_mean_of_k2_and_abs_is_another_number(estimator):
    assert abs(term(estimator)[0] - KL[0]) > 1e-2


# --- gradients on-policy, as a term of the loss ---

AS_A_TERM = {"k2": KL, "k3": REVERSED, "corrected_k3": KL, "abs": VARIATION}


@pytest.mark.parametrize("estimator", AS_A_TERM)
def test_the_gradient_of_a_term_is_that_of_what_the_docs_say(estimator):
    assert away(term(estimator)[1], AS_A_TERM[estimator][1]) < EXACT
    others = [one for one in (KL, REVERSED, VARIATION) if one is not AS_A_TERM[estimator]]
    assert all(away(term(estimator)[1], other[1]) > 1e-2 for other in others)


def test_the_gradient_of_k1_is_zero_on_average():
    assert term("k1")[1].abs().max() < 1e-15


# --- with the score part ---


def test_k1_in_the_reward_has_the_gradient_of_the_kl():
    assert away(reward("k1"), KL[1]) < EXACT


def test_k3_in_the_reward_has_the_difference_of_both_kls_as_its_gradient():
    assert away(reward("k3"), KL[1] - REVERSED[1]) < EXACT


@pytest.mark.parametrize("estimator", ["k2", "abs"])
def test_k2_and_abs_in_the_reward_have_no_divergences_gradient(estimator):
    assert all(away(reward(estimator), other) > 1e-2 for other in (KL[1], REVERSED[1], VARIATION[1]))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs"])
def test_term_and_score_part_together_are_the_gradient_of_the_mean(estimator):
    mean = differentiated(lambda logp_V: (logp_V.exp() * kl.estimate(estimator, logp_V, REF)).sum())
    assert away(term(estimator)[1] + reward(estimator), mean[1]) < EXACT
    if estimator in ("k1", "k3"):
        assert away(mean[1], KL[1]) < EXACT


# --- samples of another policy ---


def test_corrected_k3_is_right_for_samples_of_another_policy():
    """Largest ratio π / old below 2, so nothing is clipped; uncorrected k3 misses in value and in gradient."""
    _, logp_V = policy()
    assert 1.3 < (logp_V - OLD).exp().max() < 2
    value, found = term("corrected_k3", OLD)
    assert value == pytest.approx(KL[0], abs=EXACT) and away(found, KL[1]) < EXACT
    plain = term("k3", OLD)
    assert abs(plain[0] - KL[0]) > 1e-2 and away(plain[1], KL[1]) > 1e-2


def test_a_detached_ratio_would_lose_the_gradient():
    logits_V, logp_V = policy()
    values_V = kl.estimate("corrected_k3", logp_V, REF, ratio=(logp_V - logp_V.detach()).exp().detach())
    found = gradient((logp_V.detach().exp() * values_V).sum(), logits_V)
    assert away(found, REVERSED[1]) < EXACT and away(found, KL[1]) > 1e-2


def test_the_ratio_of_corrected_k3_is_clipped_at_two():
    """u = 1: k3 = .718282; r = 4 counts as 2: 1.436564, and its gradient is 2 ∇k3 = 2 (1 − e) alone."""
    logp = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    value = kl.estimate("corrected_k3", logp, torch.ones(1), ratio=(logp + math.log(4.0)).exp())
    assert value.item() == pytest.approx(1.436564, abs=1e-6)
    assert gradient(value.sum(), logp).item() == pytest.approx(2 * (1 - math.e))


def test_a_term_of_the_loss_pulls_towards_the_reference():
    """A step against each term's mean gradient lowers KL(π ‖ ref): the sign is right."""
    for estimator in AS_A_TERM:
        moved = torch.tensor(LOGITS, dtype=torch.float64) - 0.1 * term(estimator)[1]
        logp_V = moved.log_softmax(-1)
        assert (logp_V.exp() * (logp_V - REF)).sum().item() < KL[0], estimator


# --- numbers ---


def test_golden_values():
    """logp −1, ref −1.5: u = −.5. k1 .5, k2 .125, k3 e^−.5 − 1 + .5 = .106531, abs .5, corrected at r 1.5: .159796."""
    logp, ref = np.array([-1.0]), np.array([-1.5])
    found = {name: float(kl.estimate(name, logp, ref, ratio=np.array([1.5]))[0]) for name in kl.NAMES}
    wanted = {"k1": 0.5, "k2": 0.125, "k3": 0.106531, "abs": 0.5, "corrected_k3": 0.159796}
    assert found == pytest.approx(wanted, abs=1e-6)


def test_golden_values_of_k3():
    """e^u − 1 − u: e^−.1 = .904837, e^.1 = 1.105171, e^1 = 2.718282."""
    found = kl.k3(np.zeros(3), np.array([-0.1, 0.1, 1.0]))
    assert found.round(6).tolist() == [0.004837, 0.005171, 0.718282]


def test_numpy_and_torch_agree():
    logp, ref = np.array([-0.1, -30.0, -2.0, -5.0]), np.array([-40.0, -0.1, -2.5, -1.0])
    ratio = np.array([0.5, 1.0, 1.9, 3.0])
    for name in kl.NAMES:
        tensors = kl.estimate(name, torch.tensor(logp), torch.tensor(ref), ratio=torch.tensor(ratio)).numpy()
        assert tensors == pytest.approx(kl.estimate(name, logp, ref, ratio=ratio), rel=1e-15)


def test_k3_is_bounded_and_k1_and_k2_are_not():
    assert kl.k3(np.array([-1000.0]), np.array([0.0])).tolist() == [10.0]
    assert kl.k2(np.array([-100.0]), np.array([0.0])).tolist() == [5000.0]


def test_k1_as_a_term_is_refused():
    with pytest.raises(ConfigError, match="k1"):
        Objective.of(SFT(), kl=Kl("k1", 0.1))
    assert Objective.of(SFT(), kl=Kl("k1", 0.1, "reward")).kl is None


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ConfigError, match="k1, k2, k3, abs, corrected_k3"):
        kl.estimate("k4", np.zeros(1), np.zeros(1))


def test_corrected_k3_without_a_ratio_names_the_way_out():
    with pytest.raises(ConfigError, match="where=loss"):
        kl.estimate("corrected_k3", np.zeros(1), np.zeros(1))


# --- the adaptive coefficient ---


@pytest.mark.parametrize(
    ("measured", "wanted"),
    [
        (0.10, 0.2),  # on target
        (0.11, 0.2 * (1 + 0.1 * 0.05)),  # a tenth above, 500 of 10 000 attempts
        (0.09, 0.2 * (1 - 0.1 * 0.05)),
        (5.0, 0.2 * (1 + 0.2 * 0.05)),  # the error is cut at a fifth
        (0.0, 0.2 * (1 - 0.2 * 0.05)),
        (-0.3, 0.2 * (1 - 0.2 * 0.05)),  # a mean of k1 over few tokens may be negative
    ],
)
def test_the_coefficient_follows_the_kl(measured, wanted):
    assert kl.adapt(0.2, measured, 0.1, 10000, 500) == pytest.approx(wanted)


def test_a_coefficient_steers_the_kl_to_its_target():
    """A world in which the KL is .02 / coef: the coefficient ends where that is the target .1, at .2."""
    coef = 1.0
    for _ in range(2000):
        coef = kl.adapt(coef, 0.02 / coef, 0.1, 1000, 64)
    assert coef == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": 0.0}, "above 0"),
        ({"horizon": -1.0}, "above 0"),
        ({"horizon": 100.0, "n": 500}, "more than 100"),
    ],
)
def test_a_coefficient_that_cannot_be_steered_is_refused(changes, words):
    given = {"coef": 0.2, "kl": 0.1, "target": 0.1, "horizon": 10000.0, "n": 500} | changes
    with pytest.raises(ConfigError, match=words):
        kl.adapt(**given)


def test_a_kl_that_is_no_number_is_an_error_and_never_a_coefficient():
    with pytest.raises(DataError, match="nan"):
        kl.adapt(0.2, float("nan"), 0.1, 10000, 64)
