"""Advantages, returns, grouping and KL: who enters a baseline, where a reward sits, whose gradient a term has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trinity_core.algo import kl
from trinity_core.algo.assemble import advantage_batch, apply_credit, assemble
from trinity_core.algo.batch import AdvantageBatch
from trinity_core.algo.objective import Objective
from trinity_core.builtins.advantages.grpo import GroupRelative
from trinity_core.builtins.advantages.reinforce import Reinforce
from trinity_core.builtins.advantages.rloo import LeaveOneOut
from trinity_core.builtins.corrections.truncated_is import TruncatedIS
from trinity_core.builtins.losses.importance_sampling import ImportanceSampling
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.config.schema import Kl
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss
from trinity_core.testing.toys import PairPreference
from trinity_core.testing.world import World, play
from trinity_core.types import Ok, Origin

torch.set_num_threads(1)
OF = AdvantageBatch.of
GROUP_ESTIMATORS = [GroupRelative(), GroupRelative(normalize=False), LeaveOneOut()]


def credited(groups, advantage):
    batch = assemble(groups, seed=0, step=0)
    scores = advantage_batch(groups, batch, advantage.needs())
    apply_credit(batch, scores, advantage(scores))
    return batch


@pytest.mark.parametrize("advantage", GROUP_ESTIMATORS)
def test_a_sibling_without_action_tokens_enters_no_baseline(advantage):
    """ADV-01: rewards 100 and 1, the second never sampled a token: the first is alone and gets 0, not +49.5."""
    group = play(np.random.default_rng(0), [[2], [2]], name="g")
    for attempt, reward in zip(group.attempts, (100.0, 1.0)):
        attempt.score = Ok(reward)
    group.attempts[1].experiences[0].origin_T[:] = Origin.CONTEXT
    batch = credited([group], advantage)
    assert batch.advantage_N.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("advantage", ["grpo", "rloo"])
def test_a_group_of_one_is_refused_at_check(advantage):
    """ADV-02, ADV-03: an estimator that needs a group cannot have groups of one: an error before anything is loaded."""
    words = [
        "model=fake",
        "engine=fake",
        "backend=fake",
        "buffer=memory",
        f"advantage={advantage}",
        "algorithm.group_size=1",
    ]
    with pytest.raises(ConfigError, match="group_size"):
        check(compose(words))


@pytest.mark.parametrize("advantage", [*GROUP_ESTIMATORS, GroupRelative(std_level="batch")])
def test_a_singleton_gets_exactly_zero(advantage):
    """ADV-04, ADV-05: not its raw score (mean 0, deviation 1), not NaN (deviation of one value)."""
    assert "needs_group" in advantage.claims
    for reward in (5.0, -1.0, 0.0, 1e30):
        assert advantage(OF([[reward]])).advantage.tolist() == [0.0]
        assert advantage(OF([[reward], [1, 0]])).advantage[0] == 0.0


def test_an_estimator_without_a_group_says_so():
    """ADV-04: the other convention is another estimator, declared."""
    assert "needs_group" not in Reinforce().claims
    assert Reinforce()(OF([[5.0]])).advantage.tolist() == [5.0]


@pytest.mark.parametrize("advantage", GROUP_ESTIMATORS)
def test_groups_travel_with_their_attempts(advantage):
    """ADV-07, ADV-08: partial groups, and prompts laid out [p1, p2] · n: groups go by id, never by stride or window."""
    windows = advantage(OF([[1, 0, 0], [3, 5]])).advantage
    interleaved = OF([1, 3, 0, 5, 0], group_A=np.array([0, 1, 0, 1, 0]))
    found = advantage(interleaved).advantage
    assert found[[0, 2, 4, 1, 3]] == pytest.approx(windows)


def test_the_mean_is_over_the_whole_group():
    """ADV-09: rewards [1, 0, 0, 0] have the mean .25."""
    assert (np.array([1, 0, 0, 0]) - GroupRelative(normalize=False)(OF([1, 0, 0, 0])).advantage).tolist() == [0.25] * 4


@pytest.mark.parametrize("advantage", GROUP_ESTIMATORS)
def test_equal_up_to_rounding_is_equal(advantage):
    """ADV-11: .1 + .2 and .3 differ by 5.6e-17; normalised, that would be credit of ±.7."""
    assert (0.1 + 0.2) - 0.3 != 0
    assert advantage(OF([0.1 + 0.2, 0.3])).advantage.tolist() == [0.0, 0.0]
    assert not advantage(OF([0.1] * 3 + [0.3 - 0.2] * 3)).advantage.any()


def multi_turn():
    """Three tokens, then a tool's token, two more tokens, then a token of padding that nobody sampled."""
    group = play(np.random.default_rng(0), [[3, 2]], name="g")
    group.attempts[0].score = Ok(7.0)
    one = group.attempts[0].experiences[0]
    one.tokens_T = np.append(one.tokens_T, 0).astype(np.int32)
    one.origin_T = np.append(one.origin_T, Origin.CONTEXT).astype(np.uint8)
    one.logp_T = np.append(one.logp_T, np.nan).astype(np.float32)
    return group


def test_a_terminal_reward_sits_on_the_last_action_token():
    """ADV-15, ADV-16: not on what follows it, not on a masked token, and it is not lost."""
    group = multi_turn()
    batch = assemble([group], seed=0, step=0)
    scores = advantage_batch([group], batch, set())
    assert scores.reward_N().tolist() == [0, 0, 0, 0, 7.0]
    last = batch.action_N[scores.order_N[np.flatnonzero(scores.reward_N())[0]]]
    assert last == len(batch.tokens_T) - 2


def test_a_terminal_reward_moves_back_when_its_token_is_no_action():
    """ADV-15: the last token's log-probability is missing: the reward sits on the one before."""
    group = multi_turn()
    one = group.attempts[0].experiences[0]
    one.logp_T[one.action_T[-1]] = np.nan
    batch = assemble([group], seed=0, step=0)
    assert advantage_batch([group], batch, set()).reward_N().tolist() == [0, 0, 0, 7.0]


def five():
    logits_V = torch.tensor([0.3, -1.2, 0.8, 0.1, -0.4], dtype=torch.float64, requires_grad=True)
    ref_V = torch.tensor([0.1, 0.4, -0.9, 0.7, -0.2], dtype=torch.float64).log_softmax(-1)
    return logits_V, logits_V.log_softmax(-1), ref_V


def test_estimators_have_the_gradient_they_say():
    """ADV-17: k1's is zero on average; k2's is that of KL(π ‖ ref), not of k1; both enumerated over five tokens."""
    found = {}
    for name in ("k1", "k2"):
        logits_V, logp_V, ref_V = five()
        (found[name],) = torch.autograd.grad((logp_V.detach().exp() * kl.estimate(name, logp_V, ref_V)).sum(), logits_V)
    logits_V, logp_V, ref_V = five()
    (wanted,) = torch.autograd.grad((logp_V.exp() * (logp_V - ref_V)).sum(), logits_V)
    assert found["k1"].abs().max() < 1e-15
    assert (found["k2"] - wanted).abs().max() < 1e-12


def test_k3_is_documented_as_the_other_direction():
    """ADV-18: on-policy its gradient is that of KL(ref ‖ π); k2 is the one to use for KL(π ‖ ref)."""
    logits_V, logp_V, ref_V = five()
    (found,) = torch.autograd.grad((logp_V.detach().exp() * kl.k3(logp_V, ref_V)).sum(), logits_V)
    logits_V, logp_V, ref_V = five()
    (reverse,) = torch.autograd.grad((ref_V.exp() * (ref_V - logp_V)).sum(), logits_V)
    assert (found - reverse).abs().max() < 1e-6
    assert "KL(ref ‖ π)" in kl.__doc__
    assert kl.k3(np.zeros(3), np.array([-0.1, 0.1, 1.0])).round(6).tolist() == [0.004837, 0.005171, 0.718282]


def test_the_objective_differentiates_the_ratio_of_the_corrected_estimator():
    """ADV-18: over all five tokens, weighted by the policy, the KL term's gradient is that of KL(π ‖ ref), on-policy and not."""
    logits_V, logp_V, ref_V = five()
    (wanted,) = torch.autograd.grad((logp_V.exp() * (logp_V - ref_V)).sum(), logits_V)
    for shift in (0.0, 0.2):  # the policy that samples: this one, another one
        logits_V, logp_V, ref_V = five()
        old_V = (logits_V.detach() + shift * torch.arange(5)).log_softmax(-1)
        world = World.of(frozenset({"old_logp"}))
        batch = world.batch.select([int(np.bincount(world.batch.row_N).argmax())])
        assert batch.num_actions == 6
        batch.measured |= {
            "old_logp": np.append(old_V.numpy(), 0.0),
            "ref_logp": np.append(ref_V.numpy(), 0.0),
        }
        batch.token_weight["all"] = batch.token_weight["own"] = np.append(old_V.exp().numpy(), 0.0)
        batch.coef = {"kl": 1.0}
        objective = Objective.of(Nothing(), kl=Kl("corrected_k3", 1.0))
        share, _ = objective(batch, {"logp": torch.cat([logp_V, torch.zeros(1)])})
        (found,) = torch.autograd.grad(share, [logits_V])
        assert (found - wanted).abs().max() < 1e-8


class Nothing(Loss):
    """No policy term: the kernel's own are left."""

    def __call__(self, batch):
        from trinity_core.algo.batch import LossOutput

        return LossOutput([])


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_kl_term_has_a_gradient_and_it_goes_down(estimator):
    """ADV-19: not computed without a graph, not maximised: a small step against the gradient lowers the term."""
    world = World.of(frozenset({"ref_logp"}))
    world.batch.coef = {"kl": 1.0}
    objective = Objective.of(Nothing(), kl=Kl(estimator, 1.0))
    before = world.gradient(objective)
    assert np.linalg.norm(before.gradient) > 0
    step = before.gradient[: world.logits_NV.size].reshape(world.logits_NV.shape)
    world.logits_NV = world.logits_NV - 0.1 * step
    slope = (world.gradient(objective).loss - before.loss) / 0.1
    assert slope == pytest.approx(-np.sum(step**2), rel=0.05)


@pytest.mark.parametrize("loss", [PPOClip(), ImportanceSampling()])
def test_off_policy_the_loss_depends_on_old_log_probabilities(loss):
    """ADV-20: a ratio to itself is always 1; ours is to what was measured."""
    world, objective = World.of(frozenset({"old_logp"})), Objective.of(loss)
    before = world.gradient(objective)
    world.batch.measured["old_logp"] = world.batch.measured["old_logp"] - 0.1
    assert abs(world.gradient(objective).loss - before.loss) > 1e-3
    assert "reads_old_logp" in loss.claims


@pytest.mark.parametrize("old", ["measured", "forward", "sampler"])
def test_correction_weights_are_constants(old):
    """ADV-21: the gradient is that with the weights as numbers, wherever old log-probabilities come from."""
    world = World.of(frozenset({"old_logp"}))
    plain, corrected = (Objective.of(ImportanceSampling(), parts, old=old) for parts in ([], [TruncatedIS()]))
    leaves = world.leaves(plain)
    (bare,) = torch.autograd.grad(plain(world.batch, leaves)[0], leaves["logp"])
    (found,) = torch.autograd.grad(corrected(world.batch, leaves)[0], leaves["logp"])
    logp_N = leaves["logp"].detach().numpy()
    sources = {"measured": world.batch.measured["old_logp"], "forward": logp_N, "sampler": world.batch.sampler_logp_N}
    weight_N = np.minimum(np.exp(sources[old] - world.batch.sampler_logp_N), 2.0)
    assert found.numpy() == pytest.approx(bare.numpy() * weight_N, rel=1e-12)


def test_a_preference_loss_starts_at_ln_2():
    """ADV-24: policy and reference are equal at step 0, exactly: the loss is ln 2 = .693147."""
    world, objective = World.of(frozenset({"pairs", "ref_logp"})), Objective.of(PairPreference())
    world.batch.measured["ref_logp"] = world.leaves(objective)["logp"].detach().numpy()
    assert world.gradient(objective).loss == pytest.approx(np.log(2), rel=1e-15)
