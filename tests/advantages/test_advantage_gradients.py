"""What credit from distributions means: its policy gradient, enumerated over five tokens, and entropy's own slope."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trinity_core.algo.batch import AdvantageBatch
from trinity_core.builtins.advantages.clip_v import entropy_deviation
from trinity_core.builtins.advantages.jsd_sampled import SampledJSD
from trinity_core.builtins.advantages.on_policy_distill import OnPolicyDistill

LOGITS = np.array([0.3, -1.2, 0.8, 0.1, -0.4])
TEACHER = np.array([0.1, 0.4, -0.9, 0.7, -0.2])


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def slope(function, logits, step=1e-6):
    """Central differences."""
    found = []
    for place in range(len(logits)):
        up, down = logits.copy(), logits.copy()
        up[place] += step
        down[place] -= step
        found.append((function(up) - function(down)) / (2 * step))
    return np.array(found)


def policy_gradient(advantage):
    """``Σ_v q_v A_v ∇ log q_v``, ``∇_z log q_v = 1_v − q``: what on-policy samples give on average."""
    q, p = softmax(LOGITS), softmax(TEACHER)
    credit = advantage(AdvantageBatch.of([0.0] * 5, old_logp=np.log(q), teacher_logp=np.log(p))).advantage
    return (q * credit) @ (np.eye(5) - q)


def kl(a, b):
    return float((a * np.log(a / b)).sum())


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_sampled_jsd_climbs_down_the_whole_divergence(beta):
    def divergence(logits):
        q, p = softmax(logits), softmax(TEACHER)
        m = beta * p + (1 - beta) * q
        return beta * kl(p, m) + (1 - beta) * kl(q, m)

    assert policy_gradient(SampledJSD(beta=beta)) == pytest.approx(-slope(divergence, LOGITS), abs=1e-9)


def test_on_policy_distillation_climbs_down_the_reverse_kl():
    found = policy_gradient(OnPolicyDistill())
    assert found == pytest.approx(-slope(lambda z: kl(softmax(z), softmax(TEACHER)), LOGITS), abs=1e-9)


def entropy(logits):
    p = softmax(logits)
    return float(-(p * np.log(p)).sum())


def test_the_signal_is_the_slope_of_entropy():
    """``dH / dz_v = −S_v``, so ``D_v = Σ_u p_u S_u − S_v`` is the slope in ``z_v`` less its average."""
    rise, p = slope(entropy, LOGITS), softmax(LOGITS)
    logits_CV = torch.tensor(LOGITS).expand(5, 5)
    found = entropy_deviation(logits_CV, {"token_C": torch.arange(5)})["entropy_deviation"].numpy()
    assert found == pytest.approx(rise - p @ rise, abs=1e-9)
    assert p @ found == pytest.approx(0, abs=1e-12)


def test_a_token_that_is_ruled_out_spoils_nothing():
    logits_CV = torch.tensor([[0.5, float("-inf"), -0.5], [1e4, 0.0, -1e4]])
    token_C = torch.tensor([0, 0])
    found = entropy_deviation(logits_CV, {"token_C": token_C})["entropy_deviation"]
    two = entropy_deviation(logits_CV[:1, [0, 2]], {"token_C": token_C[:1]})["entropy_deviation"]
    assert found[0] == pytest.approx(float(two[0])) and found[1] == 0.0
