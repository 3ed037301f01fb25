"""The kernel's side of a loss: old log-probabilities, drops, corrections, its own terms, statistics, and clear refusals."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from trinity_core.algo.batch import LossOutput, Term
from trinity_core.algo.loss_batch import LossBatch
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.algo.stats import Stats
from trinity_core.builtins.corrections.truncated_is import TruncatedIS
from trinity_core.builtins.losses.importance_sampling import ImportanceSampling
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.builtins.losses.sft import SFT
from trinity_core.config.schema import Kl
from trinity_core.errors import ConfigError, DataError
from trinity_core.protocols import Loss
from trinity_core.testing.toys import BatchCentred, PairPreference, TwoPopulations
from trinity_core.testing.world import World

torch.set_num_threads(1)


def world(**changes):
    return World.of(frozenset({"old_logp", "expert"}), **changes)


def share_of(objective, one, **arrays):
    """Share, stats and gradient over the log-probabilities of one uncut update."""
    leaves = one.leaves(objective)
    for name, array in arrays.items():
        leaves[name] = torch.tensor(array, requires_grad=True)
    share, stats = objective(one.batch, leaves)
    (found,) = torch.autograd.grad(share, [leaves["logp"]], allow_unused=True)
    return share, stats, torch.zeros(one.batch.num_actions) if found is None else found


class Number(Loss):
    """Returns no LossOutput."""

    def __call__(self, batch):
        return 3


def test_a_loss_that_returns_something_else_is_named():
    with pytest.raises(DataError, match=r"loss Number: returned int, not a LossOutput"):
        share_of(Objective.of(Number(), old="forward"), world())


# --- old log-probabilities ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ratio_of_this_very_forward_is_exactly_one(dtype):
    one, objective = world(), Objective.of(PPOClip(), old="forward")
    leaves = {"logp": one.leaves(objective)["logp"].detach().to(dtype).requires_grad_()}
    _, stats = objective(one.batch, leaves)
    summary = stats.summary()
    assert (summary["ratio/min"], summary["ratio/max"], summary["ratio"]) == (1.0, 1.0, 1.0)
    assert summary["kl/old"] == 0.0


def test_old_log_probabilities_are_measured_or_the_samplers():
    one = world()
    seen = {}
    for old in ("measured", "sampler"):
        batch = LossBatch(one.batch, one.leaves(Objective.of(SFT())), {"old_logp"}, old=old)
        seen[old] = batch.old_logp_N.detach().numpy()
    assert np.array_equal(seen["measured"], one.batch.measured["old_logp"])
    sampled = ~np.isnan(one.batch.sampler_logp_N)
    assert np.array_equal(seen["sampler"][sampled], one.batch.sampler_logp_N[sampled])


def test_a_token_nobody_sampled_has_ratio_one_against_the_sampler():
    one = world()
    batch = LossBatch(one.batch, one.leaves(Objective.of(SFT())), {"old_logp"}, old="sampler")
    assert (batch.ratio_N[torch.as_tensor(np.isnan(one.batch.sampler_logp_N))] == 1).all()
    _, _, found = share_of(Objective.of(TwoPopulations(), old="sampler"), one)
    assert torch.isfinite(found).all()


def test_a_ratio_is_clamped_inside_its_exponential():
    one = world()
    one.batch.measured["old_logp"][:] = -1e4
    batch = LossBatch(one.batch, one.leaves(Objective.of(SFT())), {"old_logp"})
    assert batch.ratio_N.max().item() == pytest.approx(np.exp(20.0))


# --- drops ---


@pytest.mark.parametrize("loss", [PPOClip(), ImportanceSampling(), SFT()])
def test_nan_at_a_dropped_token_reaches_neither_loss_nor_gradient(loss):
    one = world()
    one.batch.keep_N[::2] = False
    set_weights(one.batch, "token_mean")
    objective = Objective.of(loss, [TruncatedIS()], kl=Kl("k3", 0.1))
    one.batch.coef = {"kl": 0.1}
    clean, _, wanted = share_of(objective, one)
    logp = one.leaves(objective)["logp"].detach().numpy().copy()
    logp[::2] = np.nan
    for name in ("old_logp", "ref_logp"):
        one.batch.measured[name][::2] = np.nan
    one.batch.advantage_N[::2] = np.nan
    share, _, found = share_of(objective, one, logp=logp)
    assert share.item() == pytest.approx(clean.item(), rel=1e-14)
    assert torch.equal(found, wanted)
    assert (found[::2] == 0).all()


def test_a_live_mask_changes_no_denominator():
    """A loss that zeroes tokens by their present log-probability still divides by all of them."""

    @dataclasses.dataclass(frozen=True)
    class Masked(Loss):
        def __call__(self, batch):
            return LossOutput.per_token(torch.ones_like(batch.logp_N) * (batch.logp_N < -1.5))

    one = world()
    logp_N = one.leaves(Objective.of(SFT()))["logp"]
    share, _ = Objective.of(Masked())(one.batch, {"logp": logp_N})
    assert share.item() == pytest.approx((logp_N < -1.5).double().mean().item())
    assert 0 < share.item() < 1


# --- corrections ---


def test_a_correction_multiplies_by_the_truncated_ratio():
    """sampler = old − .5 → e^.5 = 1.6487; sampler = old − 1 → e^1 = 2.718, cut to 2; sampler = old + 1 → e^−1 = .3679."""
    one = World.of(frozenset({"old_logp"}))
    for shift, wanted in ((-0.5, 1.6487), (-1.0, 2.0), (1.0, 0.3679)):
        one.batch.sampler_logp_N = one.batch.measured["old_logp"] + shift
        plain = one.gradient(Objective.of(ImportanceSampling()))
        after = one.gradient(Objective.of(ImportanceSampling(), [TruncatedIS()]))
        assert after.gradient == pytest.approx(plain.gradient * wanted, rel=1e-4)
        summary = after.stats.summary()
        assert summary["correction/TruncatedIS"] == pytest.approx(wanted, rel=1e-4)
        assert summary["correction/TruncatedIS/truncated"] == (1.0 if shift == -1.0 else 0.0)
        assert summary["correction/TruncatedIS/kept"] == 1.0


def test_corrections_leave_other_terms_alone():
    one = World.of(frozenset({"old_logp"}))
    one.batch.coef = {"kl": 0.3, "entropy": 0.2}
    _, plain, _ = share_of(Objective.of(PPOClip(), kl=Kl("k3", 0.3), entropy=True), one)
    _, corrected, _ = share_of(Objective.of(PPOClip(), [TruncatedIS()], kl=Kl("k3", 0.3), entropy=True), one)
    before, after = plain.summary(), corrected.summary()
    assert (before["loss/kl"], before["loss/entropy"]) == (after["loss/kl"], after["loss/entropy"])
    assert before["loss/policy"] != after["loss/policy"]


def test_corrections_of_several_kinds_multiply():
    one = World.of(frozenset({"old_logp"}))
    one.batch.sampler_logp_N = one.batch.measured["old_logp"] - 1.0
    plain = one.gradient(Objective.of(ImportanceSampling()))
    both = one.gradient(Objective.of(ImportanceSampling(), [TruncatedIS(), TruncatedIS(cap=1.5)]))
    assert both.gradient == pytest.approx(plain.gradient * 3.0)


def test_a_correction_of_tokens_is_refused_for_pairs():
    with pytest.raises(ConfigError, match="one value per pair"):
        Objective.of(PairPreference(), [TruncatedIS()])


# --- the kernel's terms ---


def test_kl_and_entropy_count_over_own_tokens_with_their_coefficients():
    one = world()
    own_N = one.batch.population_B[one.batch.row_N] == 1
    one.batch.coef = {"kl": 0.3, "entropy": 0.2}
    objective = Objective.of(SFT(), kl=Kl("k3", 0.3), entropy=True)
    leaves = one.leaves(objective)
    summary = objective(one.batch, leaves)[1].summary()
    logp_N, entropy_N = leaves["logp"].detach().numpy(), leaves["entropy"].detach().numpy()
    u_N = one.batch.measured["ref_logp"] - logp_N
    assert summary["loss/kl"] == pytest.approx(0.3 * (np.exp(u_N) - 1 - u_N)[own_N].mean())
    assert summary["loss/entropy"] == pytest.approx(-0.2 * entropy_N[own_N].mean())


def test_a_positive_entropy_coefficient_raises_entropy():
    one = world()
    one.batch.coef = {"entropy": 0.2}
    one.batch.advantage_N[:] = 0
    objective = Objective.of(PPOClip(), entropy=True)
    entropy = [one.leaves(objective)["entropy"].mean().item()]
    gradient = one.gradient(objective).gradient[: one.logits_NV.size].reshape(one.logits_NV.shape)
    one.logits_NV = one.logits_NV - gradient
    entropy.append(one.leaves(objective)["entropy"].mean().item())
    assert entropy[1] > entropy[0]


def test_the_value_term_is_the_larger_of_clipped_and_unclipped():
    """V 2, V_old 1, clip .2, return 0: ½ max(2², 1.2²) = 2. Return 3: ½ max(1², 1.8²) = 1.62."""
    one = World.of(frozenset({"value"}))
    size = one.batch.num_actions
    one.value_N[:] = 2.0
    one.batch.measured["value"] = np.ones(size)
    for returns, wanted in ((0.0, 2.0), (3.0, 1.62)):
        one.batch.returns_N = np.full(size, returns)
        assert one.gradient(Objective.critic(0.2)).loss == pytest.approx(wanted)
        one.batch.coef = {"value": 0.5}
        assert one.gradient(Objective.critic(0.2)).loss == pytest.approx(wanted / 2)
        one.batch.coef = {}


def test_a_critics_forward_needs_no_log_probabilities():
    one, objective = World.of(frozenset({"value"})), Objective.critic(0.2)
    assert objective.outputs == {"value"}
    value_N = torch.tensor(one.value_N, requires_grad=True)
    share, stats = objective(one.batch, {"value": value_N})
    share.backward()
    assert value_N.grad.abs().sum() > 0 and "ratio" not in stats.summary()


def test_an_empty_population_leaves_the_other_term_as_it_is():
    one = World.of(frozenset({"old_logp"}))  # no expert in it
    summary = one.gradient(Objective.of(TwoPopulations(mu=0.3))).stats.summary()
    plain = one.gradient(Objective.of(ImportanceSampling())).stats.summary()
    assert summary["loss/imitate"] == 0.0
    assert summary["loss/policy"] == pytest.approx(0.7 * plain["loss/policy"])


# --- what is asked for ---


def test_outputs_and_needs_follow_from_the_parts():
    objective = Objective.of(PPOClip(), [TruncatedIS()], kl=Kl("k2", 0.1), entropy=True, clip_value=0.2)
    assert objective.outputs == {"logp", "entropy", "value"}
    assert objective.needs == {"old_logp", "sampler_logp", "ref_logp"}
    assert Objective.of(BatchCentred()).scope == "batch"
    assert Objective.of(SFT()).outputs == {"logp"}


@pytest.mark.parametrize(
    ("name", "need"),
    [
        ("old_logp_N", "old_logp"),
        ("ratio_N", "old_logp"),
        ("ref_logp_N", "ref_logp"),
        ("sampler_logp_N", "sampler_logp"),
        ("teacher_logp_N", "teacher_logp"),
        ("entropy_N", "entropy"),
        ("value_N", "value"),
        ("returns_N", "returns"),
    ],
)
def test_reading_what_was_not_needed_names_it(name, need):
    one = world()
    batch = LossBatch(one.batch, one.leaves(Objective.of(SFT())), set(), who="MyLoss")
    with pytest.raises(DataError, match=f"MyLoss reads .*'{need}'"):
        getattr(batch, name)


def test_an_advantage_that_is_null_is_named_with_the_way_out():
    one = world()
    one.batch.advantage_N = None
    with pytest.raises(DataError, match="advantage=grpo"):
        Objective.of(PPOClip())(one.batch, one.leaves(Objective.of(SFT())))


def test_an_extra_that_is_not_there_is_named_beside_those_that_are():
    one = world()
    batch = LossBatch(one.batch, one.leaves(Objective.of(SFT())), set())
    with pytest.raises(DataError, match=r"extra\['images'\].*place"):
        batch.extra["images"]
    assert "place" in list(batch.extra)


class Odd(Loss):
    def __init__(self, output):
        self.output = output

    def __call__(self, batch):
        return self.output(batch)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (lambda b: LossOutput.per_token(b.logp_N.mean()), "unreduced"),
        (lambda b: LossOutput.per_sequence(b.logp_N), "one per sequence"),
        (lambda b: LossOutput([Term("x", b.logp_N, unit="word")]), "unit 'word'"),
        (lambda b: LossOutput([Term("x", b.logp_N, over="friends")]), "population 'friends'"),
    ],
)
def test_a_loss_that_reduces_or_invents_is_refused(output, words):
    one = world()
    with pytest.raises(DataError, match=words):
        Objective.of(Odd(output))(one.batch, one.leaves(Objective.of(SFT())))


def test_a_batch_without_weights_is_refused():
    one = world()
    one.batch.token_weight = {}
    with pytest.raises(DataError, match="set_weights"):
        Objective.of(SFT())(one.batch, one.leaves(Objective.of(SFT())))


def test_log_probabilities_of_another_batch_are_refused():
    one = world()
    with pytest.raises(DataError, match="action tokens"):
        Objective.of(SFT())(one.batch, {"logp": torch.zeros(3)})


def test_an_objective_pickles_small():
    objective = Objective.of(PPOClip(), [TruncatedIS()], kl=Kl("k3", 0.1), entropy=True)
    data = pickle.dumps(objective)
    assert pickle.loads(data) == objective
    assert len(data) < 2000


# --- a loss's tools ---


def test_means_and_sums_are_per_sequence():
    one = world()
    batch = LossBatch(one.batch, one.leaves(Objective.of(SFT())), set())
    x_N = torch.arange(one.batch.num_actions, dtype=torch.float64)
    for row in range(len(one.batch)):
        own = x_N[torch.as_tensor(one.batch.row_N == row)]
        assert batch.seq_sum(x_N)[row] == own.sum()
        assert batch.seq_mean(x_N)[row] == own.mean()
        assert (batch.spread(batch.seq_mean(x_N))[torch.as_tensor(one.batch.row_N == row)] == own.mean()).all()
    assert batch.populations["own"].sum() + batch.populations["expert"].sum() == one.batch.num_actions


# --- statistics ---


def test_statistics_of_parts_merge_to_those_of_the_whole():
    values = np.random.default_rng(0).normal(size=50) * 0.3

    def stats(part):
        one = Stats()
        one.mean("mean", part)
        one.total("total", part.sum())
        one.least("low", part)
        one.most("high", part)
        one.ratios("ratio", part)
        return one

    whole = stats(values).summary()
    parts = Stats.merged([stats(values[:7]), stats(values[7:7]), stats(values[7:])]).summary()
    assert parts == pytest.approx(whole)
    assert whole["mean"] == pytest.approx(values.mean())
    assert (whole["low"], whole["high"]) == (values.min(), values.max())
    assert whole["ratio"] == pytest.approx(np.exp(values).mean())
    assert (whole["ratio/min"], whole["ratio/max"]) == (np.exp(values.min()), np.exp(values.max()))
    for name, q in (("p01", 0.01), ("p50", 0.5), ("p99", 0.99)):
        exact = np.quantile(values, q, method="inverted_cdf")
        assert np.log(whole[f"ratio/{name}"]) == pytest.approx(exact, rel=1 / 12)


def test_quantiles_of_ratios_are_fine_near_one_and_bounded_far_out():
    """A ratio of exactly 1 reads 1; one of e^.001 to 1e-5 or a twelfth of .001; one of e^500 as e^20."""
    for nats, wanted, within in ((0.0, 0.0, 0.0), (1e-3, 1e-3, 1e-4), (-500.0, -20.0, 1e-9)):
        one = Stats()
        one.ratios("ratio", np.full(7, nats))
        assert np.log(one.summary()["ratio/p50"]) == pytest.approx(wanted, abs=within)


def test_statistics_with_other_keys_do_not_merge():
    one, other = Stats(), Stats()
    one.total("a", 1)
    other.total("b", 1)
    with pytest.raises(DataError, match="a, b"):
        one.merge(other)


def test_nothing_counted_is_left_out_and_never_zero():
    one = Stats()
    one.mean("mean", np.zeros(0))
    one.most("high", np.zeros(0))
    assert one.summary() == {}
