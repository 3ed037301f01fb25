"""Corrections between sampler and trainer: numbers by hand, and a slow reference that shares nothing with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trinity_core.algo.assemble import assemble
from trinity_core.algo.batch import LossOutput
from trinity_core.algo.loss_batch import LossBatch
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.corrections.masked_is import IcePop, MaskedIS, MaskedISSequence
from trinity_core.builtins.corrections.off_policy_mask import OffPolicyMask
from trinity_core.builtins.corrections.truncated_is import TruncatedIS, TruncatedISSequence
from trinity_core.builtins.losses.importance_sampling import ImportanceSampling
from trinity_core.errors import ConfigError, DataError
from trinity_core.protocols import Loss
from trinity_core.testing.contracts.correction import RULES
from trinity_core.testing.fakes import fake_group
from trinity_core.testing.world import World

torch.set_num_threads(1)
SHIPPED = (TruncatedIS(), TruncatedISSequence(), MaskedIS(), IcePop(), MaskedISSequence(), OffPolicyMask())
NEEDS = frozenset({"old_logp", "sampler_logp"})
NOBODY = math.nan


def asked(correction, differences, *, advantages=(1.0, -1.0), now=None):
    """Weights and keeps of two sequences of three and two tokens, whose old − sampler is ``differences`` (NaN: not sampled)
    and whose logp − sampler is ``now`` (default: the same)."""
    batch = assemble([fake_group([1.0, 0.0], [3, 2])], seed=0, step=0)
    batch.sampler_logp_N = np.where(np.isnan(differences), np.nan, -1.0)
    batch.measured["old_logp"] = np.nan_to_num(differences) - 1.0
    batch.advantage_N = np.asarray(advantages)[batch.row_N]
    logp_N = torch.tensor(np.nan_to_num(differences if now is None else now) - 1.0)
    weight_N, keep_N = correction(LossBatch(batch, {"logp": logp_N}, NEEDS))
    return weight_N.tolist(), keep_N.tolist()


# --- numbers by hand ---


def test_truncated_is_per_token():
    """e^.1 = 1.105171, e^.2 = 1.221403, e^1 = 2.718282 → 2, e^−.5 = .606531, e^0 = 1."""
    weights, kept = asked(TruncatedIS(cap=2.0), [0.1, 0.2, 1.0, -0.5, 0.0])
    assert weights == pytest.approx([1.105171, 1.221403, 2.0, 0.606531, 1.0], abs=1e-6) and all(kept)


def test_truncated_is_per_sequence():
    """.1 + .2 + 1 = 1.3: e^1.3 = 3.669297 → 2 at each token; −.5 + 0: e^−.5 = .606531."""
    weights, kept = asked(TruncatedISSequence(cap=2.0), [0.1, 0.2, 1.0, -0.5, 0.0])
    assert weights == pytest.approx([2.0, 2.0, 2.0, 0.606531, 0.606531], abs=1e-6) and all(kept)
    weights, _ = asked(TruncatedISSequence(cap=4.0), [0.1, 0.2, 1.0, -0.5, 0.0])
    assert weights[:3] == pytest.approx([3.669297] * 3, abs=1e-6)


def test_masked_is_per_token():
    """Within [.5, 2]: e^.1 = 1.105171, e^.2 = 1.221403, e^1 = 2.718282 is above, e^−.5 = .606531, e^−1 = .367879 is below."""
    weights, kept = asked(MaskedIS(low=0.5, high=2.0), [0.1, 0.2, 1.0, -0.5, -1.0])
    assert kept == [True, True, False, True, False]
    assert np.array(weights)[kept] == pytest.approx([1.105171, 1.221403, 0.606531], abs=1e-6)


def test_masked_is_has_no_lower_bound_by_default():
    assert asked(MaskedIS(), [-50.0, -5.0, 0.6, 0.8, 0.0])[1] == [True, True, True, False, True]


def test_icepop_keeps_ratios_from_a_half_to_five():
    """ln .5 = −.693147, ln 5 = 1.609438. What is kept weighs its ratio: e^1.5 = 4.481689, e^−.6 = .548812."""
    weights, kept = asked(IcePop(), [1.5, 1.62, -0.6, -0.7, 0.0])
    assert kept == [True, False, True, False, True]
    assert np.array(weights)[kept] == pytest.approx([4.481689, 0.548812, 1.0], abs=1e-6)


def test_masked_is_per_sequence_drops_the_whole_sequence():
    """.1 + .2 + 1 = 1.3: 3.669297 > 2, dropped whole; −.5 + .25: e^−.25 = .778801, kept."""
    weights, kept = asked(MaskedISSequence(), [0.1, 0.2, 1.0, -0.5, 0.25])
    assert kept == [False, False, False, True, True]
    assert weights[3:] == pytest.approx([0.778801] * 2, abs=1e-6)


def test_the_off_policy_mask_drops_what_was_bad_and_is_now_unlikely():
    """sampler − logp: mean of (.6, 0, 0) = .2 > .1 but A > 0: kept; mean of (.3, .1) = .2 > .1 and A < 0: dropped."""
    now = [-0.6, 0.0, 0.0, -0.3, -0.1]
    assert asked(OffPolicyMask(delta=0.1), [0.0] * 5, now=now) == ([1.0] * 5, [True, True, True, False, False])
    assert asked(OffPolicyMask(delta=0.1), [0.0] * 5, now=now, advantages=(-1.0, 1.0))[1] == [False] * 3 + [True] * 2
    assert asked(OffPolicyMask(delta=0.21), [0.0] * 5, now=now)[1] == [True] * 5


def test_the_off_policy_mask_has_a_sign():
    """A bad sequence that has become more likely than it was is the one to learn from."""
    assert asked(OffPolicyMask(delta=0.1), [0.0] * 5, now=[2.0] * 5, advantages=(-1.0, -1.0))[1] == [True] * 5


def test_a_token_that_nobody_sampled_is_in_no_sum():
    """The first sequence: .1 and 1 sampled, the second token given: e^1.1 = 3.004166 → 2; mean KL over two of three."""
    differences = [0.1, NOBODY, 1.0, -0.5, 0.0]
    assert asked(TruncatedISSequence(cap=4.0), differences)[0][0] == pytest.approx(3.004166, abs=1e-6)
    now = [-0.15, NOBODY, -0.15, 0.0, 0.0]  # mean .15 over the sampled two, .1 over all three
    assert asked(OffPolicyMask(delta=0.12), differences, now=now, advantages=(-1.0, 1.0))[1][0] is False


# --- a slow reference ---


def reference(correction, batch, logp_N):
    """One token at a time, from the definitions."""
    weights, keeps = [], []
    for n in range(batch.num_actions):
        mates = [m for m in range(batch.num_actions) if batch.row_N[m] == batch.row_N[n]]
        d = {m: float(batch.measured["old_logp"][m]) - float(batch.sampler_logp_N[m]) for m in mates}
        ratio = math.exp(sum(d.values())) if correction.scope == "sequence" else math.exp(d[n])
        if isinstance(correction, (TruncatedIS, TruncatedISSequence)):
            weights.append(min(ratio, correction.cap))
            keeps.append(True)
        elif isinstance(correction, (MaskedIS, MaskedISSequence)):
            weights.append(ratio)
            keeps.append(correction.low <= ratio <= correction.high)
        else:
            gone = [float(batch.sampler_logp_N[m]) - float(logp_N[m]) for m in mates]
            weights.append(1.0)
            keeps.append(not (batch.advantage_N[n] < 0 and sum(gone) / len(gone) > correction.delta))
    return np.array(weights), np.array(keeps)


@pytest.mark.parametrize("correction", SHIPPED, ids=lambda one: type(one).__name__)
def test_a_correction_is_what_the_slow_reference_says(correction):
    dropped = 0
    for seed in range(6):
        world = World.of(NEEDS, seed=seed)
        leaves = world.leaves(Objective.of(ImportanceSampling()))
        weight_N, keep_N = correction(LossBatch(world.batch, leaves, NEEDS))
        weights, keeps = reference(correction, world.batch, leaves["logp"].detach())
        assert np.array_equal(keep_N.numpy(), keeps)
        assert weight_N.numpy()[keeps] == pytest.approx(weights[keeps], rel=1e-12)
        dropped += int((~keeps).sum())
    assert (dropped > 0) == (not isinstance(correction, (TruncatedIS, TruncatedISSequence)))


@pytest.mark.parametrize("correction", SHIPPED, ids=lambda one: type(one).__name__)
def test_the_gradient_is_that_of_constant_weights(correction):
    for old in ("measured", "forward"):
        world = World.of(NEEDS, seed=2)
        objective = Objective.of(ImportanceSampling(), [correction], old=old)
        leaves = world.leaves(objective)
        share, _ = objective(world.batch, leaves)
        (found,) = torch.autograd.grad(share, [leaves["logp"]])
        fixed = leaves["logp"].detach().numpy()
        if old == "forward":
            world.batch.measured["old_logp"] = fixed
        weights, keeps = reference(correction, world.batch, fixed)
        ratio_N = np.exp(fixed - world.batch.measured["old_logp"])
        wanted = -world.batch.advantage_N * ratio_N * np.where(keeps, weights, 0) * world.batch.token_weight["all"]
        assert found.numpy() == pytest.approx(wanted, rel=1e-10, abs=1e-15)


def test_a_sequence_weight_makes_the_objective_see_whole_sequences():
    assert Objective.of(ImportanceSampling(), [TruncatedIS()]).scope == "token"
    assert Objective.of(ImportanceSampling(), [TruncatedIS(), MaskedISSequence()]).scope == "sequence"


# --- what the kernel does with it ---


class NanWhere(Loss):
    """``−A logp``, and NaN where ``nan_N`` says."""

    def __init__(self, nan_N):
        self.nan_N = nan_N

    def __call__(self, batch):
        return LossOutput.per_token((-batch.advantage_N * batch.logp_N).masked_fill(self.nan_N, torch.nan))


@pytest.mark.parametrize("correction", SHIPPED[2:], ids=lambda one: type(one).__name__)
def test_what_a_mask_drops_counts_zero_and_what_it_keeps_counts_as_before(correction):
    """No denominator changes, and a dropped token may have any value, NaN too."""
    world = World.of(NEEDS, seed=3, spread=0.9)
    leaves = world.leaves(Objective.of(ImportanceSampling()))
    weight_N, keep_N = correction(LossBatch(world.batch, leaves, NEEDS))
    assert 0 < keep_N.sum() < len(keep_N)
    share, _ = Objective.of(NanWhere(~keep_N), [correction])(world.batch, leaves)
    (found,) = torch.autograd.grad(share, [leaves["logp"]])
    bare_N = torch.tensor(-world.batch.advantage_N / len(keep_N))
    assert share.isfinite()
    assert torch.allclose(found, torch.where(keep_N, weight_N * bare_N, 0.0), rtol=1e-12, atol=0)


SHARES = {
    "TruncatedIS": (TruncatedIS(), 0.2, 1.0),  # e^1 above 2: one token of five
    "TruncatedISSequence": (TruncatedISSequence(), 0.6, 1.0),  # e^1.3 above 2: the three tokens of the first sequence
    "MaskedIS": (MaskedIS(), 0.0, 0.8),
    "MaskedISSequence": (MaskedISSequence(), 0.0, 0.4),
    "OffPolicyMask": (OffPolicyMask(delta=0.2), 0.0, 0.6),  # the second sequence: mean (.5 + 0) / 2 = .25 and A < 0
}


@pytest.mark.parametrize("name", SHARES)
def test_shares_of_truncated_and_kept_tokens_are_told(name):
    """old − sampler: .1, .2, 1 in the first sequence, −.5, 0 in the second; the policy is where it was."""
    correction, cut, kept = SHARES[name]
    differences = np.array([0.1, 0.2, 1.0, -0.5, 0.0])
    batch = assemble([fake_group([1.0, 0.0], [3, 2])], seed=0, step=0)
    batch.sampler_logp_N = np.full(5, -1.0)
    batch.measured["old_logp"] = differences - 1.0
    batch.advantage_N = np.array([1.0, -1.0])[batch.row_N]
    set_weights(batch, "token_mean")
    objective = Objective.of(ImportanceSampling(), [correction])
    summary = objective(batch, {"logp": torch.tensor(differences - 1.0)})[1].summary()
    found = summary[f"correction/{name}/truncated"], summary[f"correction/{name}/kept"]
    assert found == pytest.approx((cut, kept))


# --- values that cannot be ---


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TruncatedIS(cap=0.5), "1 or more"),
        (lambda: TruncatedISSequence(cap=math.inf), "1 or more"),
        (lambda: MaskedIS(low=1.1), "low ≤ 1"),
        (lambda: MaskedIS(high=0.9), "1 ≤ high"),
        (lambda: IcePop(low=-0.1), "0 ≤ low"),
        (lambda: MaskedISSequence(high=math.nan), "high"),
        (lambda: OffPolicyMask(delta=0.0), "above 0"),
    ],
)
def test_bounds_that_weigh_where_both_agree_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_the_off_policy_mask_without_an_advantage_names_the_way_out():
    world = World.of(NEEDS)
    world.batch.advantage_N = None
    with pytest.raises(DataError, match="advantage=grpo"):
        OffPolicyMask()(LossBatch(world.batch, world.leaves(Objective.of(ImportanceSampling())), NEEDS))


# --- the contract ---


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("correction", SHIPPED, ids=lambda one: type(one).__name__)
def test_what_ships_keeps_the_contract(correction, rule):
    RULES[rule](correction)
