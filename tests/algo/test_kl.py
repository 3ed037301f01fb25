"""KL estimators on five tokens, enumerated: values, and whose gradient each one has on-policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trinity_core.algo import kl
from trinity_core.algo.objective import Objective
from trinity_core.builtins.losses.sft import SFT
from trinity_core.config.schema import Kl
from trinity_core.errors import ConfigError

LOGITS = [0.3, -1.2, 0.8, 0.1, -0.4]
REF = torch.tensor([0.1, 0.4, -0.9, 0.7, -0.2], dtype=torch.float64).log_softmax(-1)


def policy():
    logits_V = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    return logits_V, logits_V.log_softmax(-1)


def gradient(value, logits_V):
    return torch.autograd.grad(value, logits_V)[0]


def expected(estimator):
    """Mean under the policy, its probabilities held: what sampling and differentiating gives on average."""
    logits_V, logp_V = policy()
    value = (logp_V.detach().exp() * kl.estimate(estimator, logp_V, REF)).sum()
    return value, gradient(value, logits_V)


def exact(forward):
    """KL(π ‖ ref) and KL(ref ‖ π), differentiated through everything."""
    logits_V, logp_V = policy()
    value = (logp_V.exp() * (logp_V - REF)).sum() if forward else (REF.exp() * (REF - logp_V)).sum()
    return value, gradient(value, logits_V)


def test_k1_and_k3_are_unbiased():
    for estimator in ("k1", "k3"):
        assert expected(estimator)[0].item() == pytest.approx(exact(True)[0].item(), abs=1e-12)


def test_the_gradient_of_k1_is_zero_on_average():
    assert expected("k1")[1].abs().max() < 1e-15


def test_the_gradient_of_k2_is_that_of_kl_to_the_reference():
    assert (expected("k2")[1] - exact(True)[1]).abs().max() < 1e-12


def test_the_gradient_of_k3_is_that_of_kl_from_the_reference():
    assert (expected("k3")[1] - exact(False)[1]).abs().max() < 1e-12
    assert (expected("k3")[1] - exact(True)[1]).abs().max() > 1e-2


def test_golden_values_of_k3():
    """e^u − 1 − u: e^−.1 = .904837, e^.1 = 1.105171, e^1 = 2.718282."""
    found = kl.k3(np.zeros(3), np.array([-0.1, 0.1, 1.0]))
    assert found.round(6).tolist() == [0.004837, 0.005171, 0.718282]


def test_numpy_and_torch_agree():
    logp, ref = np.array([-0.1, -30.0, -2.0, -5.0]), np.array([-40.0, -0.1, -2.5, -1.0])
    for name in kl.ESTIMATORS:
        tensors = kl.estimate(name, torch.tensor(logp), torch.tensor(ref)).numpy()
        assert tensors == pytest.approx(kl.estimate(name, logp, ref), rel=1e-15)


def test_k3_is_bounded_and_k1_and_k2_are_not():
    assert kl.k3(np.array([-1000.0]), np.array([0.0])).tolist() == [10.0]
    assert kl.k2(np.array([-100.0]), np.array([0.0])).tolist() == [5000.0]


def test_k1_as_a_term_is_refused():
    with pytest.raises(ConfigError, match="k1"):
        Objective.of(SFT(), kl=Kl("k1", 0.1))
    assert Objective.of(SFT(), kl=Kl("k1", 0.1, "reward")).kl is None


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ConfigError, match="k1, k2, k3"):
        kl.estimate("k4", np.zeros(1), np.zeros(1))
