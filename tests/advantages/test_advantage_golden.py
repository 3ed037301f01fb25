"""Golden numbers of advantages, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trinity_core.algo.batch import AdvantageBatch
from trinity_core.algo.credit import penalise
from trinity_core.builtins.advantages.asymre import AsymmetricReinforce
from trinity_core.builtins.advantages.clip_b import ClipB
from trinity_core.builtins.advantages.clip_v import ClipV
from trinity_core.builtins.advantages.gae import GeneralizedAdvantage
from trinity_core.builtins.advantages.gigpo import GroupInGroup
from trinity_core.builtins.advantages.grpo import GroupRelative
from trinity_core.builtins.advantages.jsd_sampled import SampledJSD
from trinity_core.builtins.advantages.maxrl import MaxRL
from trinity_core.builtins.advantages.on_policy_distill import OnPolicyDistill
from trinity_core.builtins.advantages.opmd import MirrorDescent
from trinity_core.builtins.advantages.raft import RewardRanked
from trinity_core.builtins.advantages.rec import REC
from trinity_core.builtins.advantages.reinforce_pp import ReinforcePlusPlus
from trinity_core.builtins.advantages.remax import ReMax
from trinity_core.builtins.advantages.rloo import LeaveOneOut
from trinity_core.builtins.advantages.step_wise_grpo import StepWiseGRPO
from trinity_core.builtins.advantages.win_rate import WinRate
from trinity_core.errors import DataError

OF = AdvantageBatch.of
COMPARES = [
    GroupRelative(),
    LeaveOneOut(),
    MirrorDescent(),
    MirrorDescent(baseline="logsumexp", tau=0.1),
    REC(normalize=True),
    REC(drop="balance", normalize=True),
    MaxRL(),
    StepWiseGRPO(),
    WinRate(),
]


def close(found, wanted):
    assert np.asarray(found) == pytest.approx(wanted, abs=5e-5)


# --- per attempt ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("advantage", COMPARES, ids=repr)
@pytest.mark.parametrize("rewards", [[1, 1, 1], [0.1 + 0.2, 0.3], [0.1] * 7, [1e9 + 0.1] * 3, [0, 0], [5.0], [-2.0]])
def test_equal_rewards_and_one_alone_get_exactly_nothing(advantage, rewards):
    assert "zero_on_constant_group" in advantage.claims
    beside = OF([rewards, [1, 0]])
    assert not advantage(OF(rewards)).advantage.any()
    assert not advantage(beside).advantage[: len(rewards)].any()
    assert advantage(beside).advantage[len(rewards)] > 0


@pytest.mark.parametrize("advantage", [one for one in COMPARES if "shift_invariant" in one.claims], ids=repr)
def test_a_far_away_zero_changes_nothing(advantage):
    """Rewards of 10⁷ and 10⁷ + 1, whose squares differ in the last digits: deviations are those of differences. The mean
    itself is rounded to 2e-9."""
    assert advantage(OF([1e7 + 1, 1e7, 1e7])).advantage == pytest.approx(advantage(OF([1, 0, 0])).advantage, abs=2e-8)


def test_the_soft_maximum_as_baseline():
    """log((e + 3) / 4) = log 1.42957 = .35737: 1 − .35737, 0 − .35737. At τ = .5: ½ log((e² + 3) / 4) = ½ log 2.59726 = .47723."""
    soft = [MirrorDescent(baseline="logsumexp", tau=tau)(OF([1, 0, 0, 0])).advantage for tau in (1.0, 0.5)]
    close(soft[0], [0.64263, -0.35737, -0.35737, -0.35737])
    close(soft[1], [0.52277, -0.47723, -0.47723, -0.47723])


def test_a_soft_maximum_of_large_rewards_is_finite():
    """10⁶ and 0 at τ = 1: the baseline is 10⁶ − log 2."""
    close(MirrorDescent(baseline="logsumexp")(OF([1e6, 0])).advantage, [0.69315, -1e6 + 0.69315])


def test_the_greedy_attempt_is_the_baseline():
    """Group one: 1 − ½, 0 − ½. Group two: the greedy attempt failed, so nobody is compared."""
    roles = ["sample", "sample", "greedy", "sample", "greedy"]
    credit = ReMax()(OF([[1, 0, 0.5], [1, None]], role_A=roles))
    assert credit.advantage.tolist() == [0.5, -0.5, 0, 0, 0]
    assert credit.metrics == {"groups_without_greedy": 1.0}


def test_a_draw_with_the_greedy_attempt_is_exactly_nothing():
    assert ReMax()(OF([0.1 + 0.2, 0.3], role_A=["sample", "greedy"])).advantage.tolist() == [0, 0]


def test_a_baseline_below_the_mean():
    """Mean ¼, baseline .15: 1 − .15 = .85, −.15. Equal rewards: −shift = .1. Alone: 0."""
    close(AsymmetricReinforce()(OF([[1, 0, 0, 0], [3, 3], [7]])).advantage, [0.85, -0.15, -0.15, -0.15, 0.1, 0.1, 0])


def test_rec_divides_by_the_population_deviation():
    """Mean ¼; squares (.5625 + 3 · .0625) / 4 = .1875, root .43301: .75 / .43301 = 1.73205, −.57735."""
    close(REC(normalize=True, eps=0.0)(OF([1, 0, 0, 0])).advantage, [1.73205, -0.57735, -0.57735, -0.57735])


def test_balance_keeps_as_many_failures_as_successes():
    """One success: one failure stays, the mean of the two is ½. Two of three successes: nobody leaves."""
    credit = REC(drop="balance")(OF([[0, 0, 1, 0], [1, 1, 0]], num_actions_A=[1, 2, 1, 1, 1, 1, 1]))
    close(credit.advantage, [-0.5, 0, 0.5, 0, 1 / 3, 1 / 3, -2 / 3])
    assert credit.keep_N.tolist() == [True, False, False, True, False, True, True, True]
    assert credit.metrics == {"dropped": pytest.approx(2 / 7)}


def test_rare_successes_weigh_more():
    """(1 − ¼) / ¼ = 3; (1 − ½) / ½ = 1; no success: 0. Negative rewards are counted."""
    close(MaxRL()(OF([[1, 0, 0, 0], [1, 0], [0, 0]])).advantage, [3, -1, -1, -1, 1, -1, 0, 0])
    odd = MaxRL()(OF([-1, 0]))
    assert odd.advantage.tolist() == [0, 0] and odd.metrics == {"negative_rewards": 1.0}


def test_a_win_rate_is_over_the_others():
    """[3, 1, 1, 0]: 3 beats three of three; 1 beats one and draws one: 1.5 / 3; 0 beats none. Minus ½."""
    close(WinRate()(OF([3, 1, 1, 0])).advantage, [0.5, 0, 0, -0.5])
    assert WinRate()(OF([0.1 + 0.2, 0.3])).advantage.tolist() == [0, 0]


def test_raft_keeps_successes_alone():
    credit = RewardRanked(threshold=0.5)(OF([1, 0.5, None, 0.6], num_actions_A=[2, 1, 1, 1]))
    assert credit.advantage.tolist() == [1, 0, 0, 1]
    assert credit.keep_N.tolist() == [True, True, False, False, True]
    assert credit.metrics == {"kept": pytest.approx(2 / 3)}


# --- per call ---------------------------------------------------------------------------------------------------------

THREE_CALLS = {"attempt_K": [0, 1, 0, 1, 0], "step_K": [2, 0, 0, 1, 1], "call_N": [2, 1]}
"""Attempt 0 has three calls, in places 2, 4, 0 by step; attempt 1 has two."""


def test_each_call_has_the_credit_of_its_attempt():
    """Two attempts, not five calls: mean ½, sample deviation √½ = .70711: ±.70711; divided by 3 and by 2."""
    batch = OF([1, 0], reward_K=[np.nan] * 5, **THREE_CALLS)
    close(StepWiseGRPO(eps=0.0)(batch).advantage, [0.70711, -0.70711, 0.70711, -0.70711, 0.70711])
    close(StepWiseGRPO(eps=0.0, step_norm=True)(batch).advantage, [0.2357, -0.35355, 0.2357, -0.35355, 0.2357])


def test_the_last_step_is_that_with_the_highest_number():
    """Last steps: 4 (place 0) and 2 (place 3): ±1 about 3."""
    batch = OF([1, 0], reward_K=[4, 8, 9, 2, 7], **THREE_CALLS)
    assert StepWiseGRPO(final="last_step", normalize=False)(batch).advantage.tolist() == [1, -1, 1, -1, 1]


def test_calls_in_one_state_are_compared():
    """γ ½. Attempt 0, steps a, b, a with rewards 0, 0, 4: returns 1, 2, 4. Attempt 1, steps a, b with 2, 2: returns 3, 2.
    State a: 1, 4, 3, mean 8/3; state b: 2, 2, nothing. Episodes 4 and 4: nothing."""
    batch = OF([4, 4], reward_K=[4, 2, 0, 2, 0], state_K=["a", "a", "a", "b", "b"], **THREE_CALLS)
    credit = GroupInGroup(gamma=0.5)(batch)
    close(credit.advantage, [4 / 3, 1 / 3, -5 / 3, 0, 0])
    assert credit.metrics == {"compared_calls": 1.0}
    # deviation of 1, 4, 3: squares (25 + 16 + 1) / 9 / 2 = 2.3333, root 1.52753
    close(GroupInGroup(gamma=0.5, normalize=True, eps=0.0)(batch).advantage, [0.87287, 0.21822, -1.09109, 0, 0])


def test_a_state_of_another_task_is_another_state():
    """Two tasks of one attempt each, both in state a: nobody is compared."""
    batch = OF([[4], [1]], reward_K=[4, 1], state_K=["a", "a"])
    assert not GroupInGroup()(batch).advantage.any()


def test_without_step_rewards_the_last_step_has_the_attempts():
    """γ ½, reward 8 on step 2: returns 2, 4, 8 in steps 0, 1, 2; attempt 1: 0, 0. State s of step 0: 2 and 0, ±1. Episode: ±4."""
    batch = OF([8, 0], reward_K=[np.nan] * 5, state_K=["", "s", "s", "", ""], **THREE_CALLS)
    assert GroupInGroup(gamma=0.5)(batch).advantage.tolist() == [4, -5, 5, -4, 4]


def test_gigpo_without_a_state_says_so():
    with pytest.raises(DataError, match="no call of the lease has a state"):
        GroupInGroup()(OF([1, 0]))


# --- per token --------------------------------------------------------------------------------------------------------


def test_returns_are_whitened_over_tokens():
    """Returns 2, 4, 8 (γ ½): mean 14/3, squares (64 + 4 + 100) / 9 / 3 = 6.2222, root 2.49444."""
    close(ReinforcePlusPlus(gamma=0.5)(OF([8], num_actions_A=[3])).advantage, [-1.06904, -0.26726, 1.33631])


def test_a_longer_attempt_weighs_more_in_whitening():
    """Returns 1, 0, 0, 0: mean ¼, root of .1875 = .43301."""
    close(ReinforcePlusPlus()(OF([1, 0], num_actions_A=[1, 3])).advantage, [1.73205, -0.57735, -0.57735, -0.57735])


def test_whitening_moves_a_constant_group():
    """½, −½ three times, 0, 0: mean −1/6, squares 1/6 − 1/36 = 5/36, root .37268: the constant group gets (1/6) / .37268."""
    batch = OF([[1, 0], [1, 1]], num_actions_A=[1, 3, 1, 1])
    close(ReinforcePlusPlus(baseline="group")(batch).advantage, [1.78885, *[-0.89443] * 3, 0.44721, 0.44721])


def test_a_lease_of_equal_returns_gets_exactly_nothing():
    assert not ReinforcePlusPlus()(OF([[0.1 + 0.2, 0.3], [0.3]])).advantage.any()


def test_kl_is_a_reward_of_its_token():
    """coef .1, k1 = (½, 0): rewards −.05, 0 + 1. Returns .95, 1, and 0, 0 of the other: mean .4875, root of .238… = .48793."""
    plain = OF([1, 0], num_actions_A=[2, 2], old_logp=[-1, -2, -1, -1], ref_logp=[-1.5, -2, -1, -1])
    credit = ReinforcePlusPlus()(penalise(plain, 0.1))
    spread = math.sqrt((0.95**2 + 1) / 4 - 0.4875**2)
    close(credit.advantage, [0.4625 / spread, 0.5125 / spread, -0.4875 / spread, -0.4875 / spread])


def test_the_groups_mean_leaves_the_reward_before_the_kl():
    """Rewards 1 and 1: the baseline takes them away and leaves the KL: returns −.05, 0, 0, 0; mean −.0125, root .021651."""
    plain = OF([1, 1], num_actions_A=[2, 2], old_logp=[-1, -2, -1, -1], ref_logp=[-1.5, -2, -1, -1])
    close(ReinforcePlusPlus(baseline="group")(penalise(plain, 0.1)).advantage, [-1.73205, 0.57735, 0.57735, 0.57735])


def test_generalised_advantages():
    """γ = λ = ½, V = ½, ¼, reward 1: δ₂ = 1 − ¼ = ¾; δ₁ = ½ · ¼ − ½ = −⅜; A₁ = −⅜ + ¼ · ¾ = −.1875. Returns A + V, before whitening:
    mean .28125, deviation .46875: ∓1."""
    batch = OF([1], num_actions_A=[2], value=[0.5, 0.25])
    plain = GeneralizedAdvantage(gamma=0.5, lam=0.5, whiten=False)(batch)
    assert plain.advantage.tolist() == [-0.1875, 0.75] and plain.returns_N.tolist() == [0.3125, 1.0]
    white = GeneralizedAdvantage(gamma=0.5, lam=0.5)(batch)
    close(white.advantage, [-1, 1])
    assert white.returns_N.tolist() == [0.3125, 1.0]


def test_at_gamma_and_lambda_1_an_advantage_is_return_minus_value():
    credit = GeneralizedAdvantage(whiten=False)(OF([1], num_actions_A=[3], value=[0.5, 0.25, 0.75]))
    assert credit.advantage.tolist() == [0.5, 0.75, 0.25] and credit.returns_N.tolist() == [1, 1, 1]


def test_a_truncated_attempt_may_go_on():
    """As above with V ¼ after the end: δ₂ = 1 + ½ · ¼ − ¼ = .875; A₁ = −⅜ + ¼ · .875 = −.15625. The other attempt ended."""
    batch = OF([1, 1], num_actions_A=[2, 2], value=[0.5, 0.25] * 2, truncated_A=[True, False])
    advantage = GeneralizedAdvantage(gamma=0.5, lam=0.5, whiten=False, bootstrap_truncated=True)
    assert advantage(batch).advantage.tolist() == [-0.15625, 0.875, -0.1875, 0.75]
    with pytest.raises(DataError, match="bootstrap_truncated"):
        advantage(OF([1], value=[0.5]))


def test_a_critic_learns_nothing_from_what_was_not_played():
    """An expert's token and a fault's: credit 0, return equal to the value, so that the value stays."""
    batch = OF([1, 9, None], role_A=["sample", "expert", "sample"], value=[0.5, 0.25, 0.125])
    credit = GeneralizedAdvantage(whiten=False)(batch)
    assert credit.advantage.tolist() == [0.5, 0, 0] and credit.returns_N.tolist() == [1, 0.25, 0.125]


def test_distillation_is_the_gap_to_the_teacher():
    credit = OnPolicyDistill(coef=2.0)(OF([0, None], teacher_logp=[-1, -1], old_logp=[-2.5, -3]))
    assert credit.advantage.tolist() == [3, 0] and credit.metrics == {"reverse_kl": -1.5}


def test_jensen_shannon_at_the_sampled_token():
    """β ¼, q .9, p .1: m = .025 + .675 = .7; −¾ log(.9 / .7) = −.18848. Equal: 0."""
    batch = OF([0, 0], teacher_logp=np.log([0.1, 0.4]), old_logp=np.log([0.9, 0.4]))
    close(SampledJSD(beta=0.25)(batch).advantage, [-0.18848, 0])


# --- tokens that leave ------------------------------------------------------------------------------------------------


def test_clip_b_drops_failures_that_would_lower_entropy_most():
    """S = p (H + log p). Tokens: ½ at log 2: 0; e⁻³ at 1: −.09957. Of eight values, two −.09957: mean −.02489, deviation
    .04312, so 1.73 below. Of the two the failure's leaves, the success's stays."""
    logp, entropy = [-math.log(2)] * 8, [math.log(2)] * 8
    for place in (2, 7):
        logp[place], entropy[place] = -3.0, 1.0
    batch = OF([0, 1], num_actions_A=[4, 4], old_logp=logp, entropy=entropy)
    credit = ClipB(mu=1.7)(batch)
    assert np.flatnonzero(~credit.keep_N).tolist() == [2] and credit.metrics == {"dropped": 0.125}
    assert ClipB(mu=1.8)(batch).keep_N.all()
    assert credit.advantage.tolist() == GroupRelative()(batch).advantage.tolist()


def test_clip_b_keeps_all_where_nothing_differs():
    batch = OF([0, 1], old_logp=[-1, -1], entropy=[0.5, 0.5])
    assert ClipB(mu=0.0)(batch).keep_N.all()


def far(**options):
    """D of a failure's six tokens and of a success's two: deviation √(Σ D² / 8 − mean²) = √(52 / 8 − 2.25²) = 1.19896."""
    batch = OF([0, 1], num_actions_A=[6, 2], entropy_deviation=[1, 2, 2, 3, 0, 3, 3, 4])
    return np.flatnonzero(~ClipV(**options)(batch).keep_N).tolist()


def test_clip_v_drops_failures_that_fall_furthest_below_their_distribution():
    """Above 1.5 · 1.19896 = 1.798: 2, 2, 3, 3 of the failure, whatever the success has."""
    assert far(mu=1.5, max_share=1.0) == [1, 2, 3, 5]


def test_clip_v_drops_at_most_its_share_and_no_half_of_a_tie():
    """Two of eight: the two 3s. Three: the 2s tie for the last place and stay. One (the least): the 3s tie and stay."""
    assert far(mu=1.5, max_share=0.25) == [3, 5]
    assert far(mu=1.5, max_share=0.4) == [3, 5]
    assert far(mu=1.5) == []
    assert far(mu=2.5, max_share=1.0) == [3, 5]  # above 2.997
    assert far(mu=2.51, max_share=1.0) == []  # above 3.009
