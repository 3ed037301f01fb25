"""Distillation of whole distributions: against the paper one vocabulary entry at a time, and by hand."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch

from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.losses.jsd import JSD, divergence
from trinity_core.errors import ConfigError
from trinity_core.testing.contracts import loss as contract
from trinity_core.testing.world import World

torch.set_num_threads(1)
BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)
FEW = (None, 1, 3)


def softmax(logits):
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [weight / sum(weights) for weight in weights]


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q) if a > 0)


def plain(student, teacher, beta, top_k=None):
    """Eq. 1 of GKD for one token, in plain Python; at the ends the KL that the paper names."""
    p, q = softmax(teacher), softmax(student)
    if top_k is not None:
        best = sorted(range(len(p)), key=lambda v: -p[v])[:top_k]
        p, q = [[x[v] for v in best] + [sum(x[v] for v in range(len(x)) if v not in best)] for x in (p, q)]
    if beta == 0:
        return kl(p, q)
    if beta == 1:
        return kl(q, p)
    m = [beta * a + (1 - beta) * b for a, b in zip(p, q)]
    return beta * kl(p, m) + (1 - beta) * kl(q, m)


def slope(student, teacher, beta, top_k=None, step=1e-6):
    """Central differences of :func:`plain` by each of the student's logits."""
    found = []
    for v in range(len(student)):
        above, below = ([x + by * (n == v) for n, x in enumerate(student)] for by in (step, -step))
        found.append((plain(above, teacher, beta, top_k) - plain(below, teacher, beta, top_k)) / (2 * step))
    return found


def computed(student, teacher, beta, top_k=None):
    """Values, and the gradient of their sum by the student's and the teacher's logits."""
    logits, other = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (student, teacher))
    value_C = divergence(logits, {"teacher_logits_CV": other}, beta=beta, top_k=top_k)["jsd"]
    value_C.sum().backward()
    return value_C.tolist(), logits.grad.tolist(), other.grad


@pytest.mark.parametrize("top_k", FEW)
@pytest.mark.parametrize("beta", BETAS)
def test_the_divergence_is_the_papers(beta, top_k):
    rng = np.random.default_rng(3)
    student, teacher = rng.normal(size=(6, 9)).tolist(), (3 * rng.normal(size=(6, 9))).tolist()
    values, gradient, _ = computed(student, teacher, beta, top_k)
    for s, t, value, grad in zip(student, teacher, values, gradient):
        assert value == pytest.approx(plain(s, t, beta, top_k), rel=1e-12)
        assert grad == pytest.approx(slope(s, t, beta, top_k), abs=1e-9)


@pytest.mark.parametrize("top_k", FEW)
@pytest.mark.parametrize("beta", BETAS)
def test_the_teacher_has_no_gradient(beta, top_k):
    rng = np.random.default_rng(4)
    assert computed(rng.normal(size=(2, 5)).tolist(), rng.normal(size=(2, 5)).tolist(), beta, top_k)[2] is None


@pytest.mark.parametrize(
    ("beta", "value"),
    [
        # p = (3/4, 1/4), q = (1/4, 3/4), m = (1/2, 1/2): both KLs .75 ln 1.5 + .25 ln .5 = .304099 − .173287
        (0.5, 0.130812),
        # KL(p ‖ q) = .75 ln 3 − .25 ln 3 = ½ ln 3
        (0.0, 0.549306),
        (1.0, 0.549306),
        # m = (3/8, 5/8): .25 (.75 ln 2 + .25 ln .4) = .25 (.519860 − .229073); .75 (.25 ln 2/3 + .75 ln 1.2) = .75 (−.101366 + .136741)
        (0.25, 0.099229),
    ],
)
def test_two_tokens_by_hand(beta, value):
    student, teacher = [0.0, math.log(3)], [math.log(3), 0.0]
    assert computed([student], [teacher], beta)[0] == pytest.approx([value], abs=1e-6)


def test_at_0_it_is_the_kl_that_covers_the_teacher_and_at_1_the_one_that_seeks_its_mode():
    """p = (1/2, 1/2), q = (3/4, 1/4): KL(p ‖ q) = ½ ln 2/3 + ½ ln 2 = .143841; KL(q ‖ p) = .75 ln 1.5 + .25 ln .5 = .130812."""
    student, teacher = [math.log(3), 0.0], [0.0, 0.0]
    assert computed([student], [teacher], 0.0)[0] == pytest.approx([0.143841], abs=1e-6)
    assert computed([student], [teacher], 1.0)[0] == pytest.approx([0.130812], abs=1e-6)


def test_the_ends_are_limits_of_the_gradient():
    """JSD(β) / β → KL(p ‖ q) as β → 0, JSD(β) / (1 − β) → KL(q ‖ p) as β → 1: values and gradients. (JSD(β) itself → 0.)"""
    rng = np.random.default_rng(5)
    student, teacher = rng.normal(size=(3, 6)).tolist(), rng.normal(size=(3, 6)).tolist()
    for end, near, scale in ((0.0, 1e-5, 1e-5), (1.0, 1 - 1e-5, 1e-5)):
        limit, close = computed(student, teacher, end), computed(student, teacher, near)
        assert np.array(close[0]) / scale == pytest.approx(np.array(limit[0]), rel=1e-3)
        assert np.array(close[1]) / scale == pytest.approx(np.array(limit[1]), rel=1e-3, abs=1e-4)
        assert max(close[0]) < 1e-4


@pytest.mark.parametrize("beta", BETAS)
def test_it_is_0_where_the_student_is_the_teacher_and_positive_elsewhere(beta):
    rng = np.random.default_rng(6)
    one = rng.normal(size=(20, 7)).tolist()
    values, gradient, _ = computed(one, (np.array(one) + 5.0).tolist(), beta)  # logits have no origin
    assert values == pytest.approx([0.0] * 20, abs=1e-14) and np.abs(gradient).max() < 1e-14
    assert min(computed(one, rng.normal(size=(20, 7)).tolist(), beta)[0]) > 0


@pytest.mark.parametrize("beta", BETAS)
def test_bins_hide_part_of_the_divergence_and_all_tokens_as_bins_hide_none(beta):
    rng = np.random.default_rng(7)
    student, teacher = rng.normal(size=(8, 6)).tolist(), rng.normal(size=(8, 6)).tolist()
    whole = np.array(computed(student, teacher, beta)[0])
    last = np.zeros(8)
    for top_k in range(1, 5):
        here = np.array(computed(student, teacher, beta, top_k)[0])
        assert (here <= whole + 1e-14).all() and (here >= last - 1e-14).all()
        last = here
    for top_k in (5, 6, 99):  # one token in the bin is no bin
        assert np.array(computed(student, teacher, beta, top_k)[0]) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("top_k", FEW)
@pytest.mark.parametrize("beta", BETAS)
def test_sure_and_excluding_sides_give_finite_numbers(beta, top_k, dtype):
    """Logits 300 apart, and tokens that the teacher, the student, or both exclude."""
    wide, none = 300.0, -math.inf
    teacher = torch.tensor([[wide, 0, -wide, 1], [none, 1, 2, 3], [1, 2, 3, 4], [none, 1, 0, 2]], dtype=dtype)
    student = torch.tensor([[-wide, 0, wide, 1], [1, 2, 3, 4], [none, 1, 2, 3], [none, 2, 1, 0]], dtype=dtype)
    student.requires_grad_()
    value_C = divergence(student, {"teacher_logits_CV": teacher}, beta=beta, top_k=top_k)["jsd"]
    value_C.sum().backward()
    assert value_C.dtype == dtype and torch.isfinite(value_C).all() and (value_C >= -1e-6).all()
    assert torch.isfinite(student.grad).all()
    if 0 < beta < 1:  # bounded by the entropy of a coin that falls on β
        assert value_C.max() <= -beta * math.log(beta) - (1 - beta) * math.log(1 - beta) + 1e-6


def test_a_teacher_without_a_number_is_heard_only_where_the_token_counts():
    teacher = torch.tensor([[math.nan, 0.0, 1.0], [0.0, 1.0, 2.0]])
    student = torch.zeros(2, 3, requires_grad=True)
    value_C = divergence(student, {"teacher_logits_CV": teacher}, beta=0.5, top_k=None)["jsd"]
    assert value_C.isnan().tolist() == [True, False]
    torch.where(torch.tensor([False, True]), value_C, torch.zeros(2)).sum().backward()
    assert torch.isfinite(student.grad).all()


def test_an_update_is_the_mean_over_its_tokens():
    for loss in (JSD(), JSD(beta=0.2, top_k=2)):
        world = World.of(loss.needs(), seed=2)
        set_weights(world.batch, loss.reduction)
        teacher = world.batch.measured["teacher_hidden"]  # of the kit's world: the teacher's logits
        pairs = list(zip(world.logits_NV.tolist(), teacher.tolist()))
        found = world.gradient(Objective.of(loss))
        assert found.loss == pytest.approx(sum(plain(s, t, loss.beta, loss.top_k) for s, t in pairs) / len(pairs))
        wanted = np.array([slope(s, t, loss.beta, loss.top_k) for s, t in pairs]) / len(pairs)
        assert found.gradient[: wanted.size].reshape(wanted.shape) == pytest.approx(wanted, abs=1e-10)


def test_the_vocabulary_function_goes_to_another_process():
    function = pickle.loads(pickle.dumps(JSD(beta=0.2, top_k=2).vocab()["jsd"]))
    logits = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.float64)
    found = function(logits, {"teacher_logits_CV": logits.flip(-1)})
    assert float(found["jsd"]) == pytest.approx(plain([0, 1, 2], [2, 1, 0], 0.2, 2))


@pytest.mark.parametrize("rule", contract.RULES)
@pytest.mark.parametrize("loss", [JSD(beta=0.0), JSD(beta=1.0), JSD(beta=0.3, top_k=2)], ids=repr)
def test_the_contract_holds_for_every_divergence(loss, rule):
    contract.RULES[rule](loss)


@pytest.mark.parametrize(("field", "value"), [("beta", -0.1), ("beta", 1.1), ("top_k", 0)])
def test_a_divergence_without_meaning_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"loss.{field}"):
        JSD(**{field: value})
