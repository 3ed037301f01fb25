"""Golden numbers, worked by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import trinity_core
from trinity_core.algo.batch import AdvantageBatch
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.advantages.grpo import GroupRelative
from trinity_core.builtins.advantages.reinforce import Reinforce
from trinity_core.builtins.advantages.rloo import LeaveOneOut
from trinity_core.builtins.corrections.truncated_is import TruncatedIS
from trinity_core.builtins.losses.importance_sampling import ImportanceSampling
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.builtins.losses.sft import SFT
from trinity_core.testing.toys import PairPreference
from trinity_core.testing.world import World

OF = AdvantageBatch.of
CONF = Path(trinity_core.__file__).parent / "conf"


def test_group_relative():
    """Mean .25; squares .5625 + 3 · .0625 = .75, / 3 = .25, root .5: (.75, −.25 …) / .5 = 1.5, −.5 …"""
    assert GroupRelative(eps=0.0)(OF([1, 0, 0, 0])).advantage.tolist() == [1.5, -0.5, -0.5, -0.5]
    assert GroupRelative()(OF([1, 0, 0, 0])).advantage == pytest.approx(
        np.array([0.75, -0.25, -0.25, -0.25]) / (0.5 + 1e-6)
    )
    assert GroupRelative(normalize=False)(OF([1, 0, 0, 0])).advantage.tolist() == [0.75, -0.25, -0.25, -0.25]


def test_group_relative_by_the_deviation_of_the_lease():
    """[1, 0] and [3, 3]: mean 1.75, squares .5625 + 3.0625 + 2 · 1.5625 = 6.75, / 3 = 2.25, root 1.5; (.5, −.5) / 1.5 = ±1/3."""
    found = GroupRelative(std_level="batch", eps=0.0)(OF([[1, 0], [3, 3]])).advantage
    assert found == pytest.approx([1 / 3, -1 / 3, 0, 0])


def test_leave_one_out():
    """1 − 0 = 1; 0 − (1 + 0 + 0) / 3 = −1/3."""
    assert LeaveOneOut()(OF([1, 0, 0, 0])).advantage == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])


def test_reinforce_is_the_reward():
    assert Reinforce()(OF([1, None, -0.5])).advantage.tolist() == [1, 0, -0.5]


@pytest.mark.parametrize("advantage", [GroupRelative(), GroupRelative(normalize=False), LeaveOneOut()])
def test_a_constant_group_gets_no_credit(advantage):
    for rewards in ([1, 1, 1], [0.1 + 0.2, 0.3], [0.1] * 7, [1e9 + 0.1] * 3, [0, 0]):
        assert advantage(OF(rewards)).advantage.tolist() == [0] * len(rewards)


@pytest.mark.parametrize("advantage", [GroupRelative(), GroupRelative(std_level="batch"), LeaveOneOut()])
def test_a_group_of_one_gets_no_credit(advantage):
    assert advantage(OF([[5], [1, 0]])).advantage[0] == 0


def test_small_differences_are_differences():
    assert LeaveOneOut()(OF([1e-12, 0])).advantage.tolist() == [1e-12, -1e-12]
    assert GroupRelative(normalize=False)(OF([1.0, 1.0001])).advantage == pytest.approx([-5e-5, 5e-5])


def test_greedy_and_expert_attempts_enter_no_baseline():
    batch = OF([1, 0, 9, 9], role_A=["sample", "sample", "greedy", "expert"])
    assert LeaveOneOut()(batch).advantage.tolist() == [1, -1, 0, 0]


def one_token(advantage, d, loss):
    """Loss of a single action token with this advantage and this difference to old, and its gradient."""
    world = World.of(frozenset({"old_logp"}))
    batch = world.batch.select([2])  # all its tokens are alike, so its token mean is that of one
    batch.advantage_N = np.full(batch.num_actions, float(advantage))
    logp_N = torch.full((batch.num_actions,), -1.0, dtype=torch.float64, requires_grad=True)
    batch.measured["old_logp"] = np.full(batch.num_actions, -1.0 - d)
    set_weights(batch, "token_mean")
    share, stats = Objective.of(loss)(batch, {"logp": logp_N})
    share.backward()
    return share.item(), logp_N.grad.sum().item(), stats.summary()


@pytest.mark.parametrize(
    ("advantage", "ratio", "value", "gradient"),
    [
        (1, 1.1, -1.1, -1.1),  # inside
        (1, 1.5, -1.2, 0.0),  # above 1 + high: clipped, no gradient
        (1, 0.5, -0.5, -0.5),  # below 1 − low, but going up is wanted
        (-1, 0.5, 0.8, 0.0),  # below 1 − low: clipped
        (-1, 1.5, 1.5, 1.5),  # above 1 + high, but going down is wanted
        (2, 1.0, -2.0, -2.0),
    ],
)
def test_ppo_clips_only_what_would_go_further(advantage, ratio, value, gradient):
    found = one_token(advantage, math.log(ratio), PPOClip())
    assert found[0] == pytest.approx(value) and found[1] == pytest.approx(gradient)
    clipped = found[2]["clip/high"] + found[2]["clip/low"]
    assert clipped == (1.0 if gradient == 0 else 0.0)


def test_clip_higher_and_dual_clip():
    assert one_token(1, math.log(1.5), PPOClip(clip_high=0.28))[0] == pytest.approx(-1.28)
    # A = −1, r = 5: max(5, 1.2) = 5, at most −A c = 3; and no gradient there
    assert one_token(-1, math.log(5), PPOClip(dual_clip=3.0))[:2] == pytest.approx((3.0, 0.0))
    assert one_token(1, math.log(0.1), PPOClip(dual_clip=3.0))[0] == pytest.approx(-0.1)


def test_importance_sampling_and_maximum_likelihood():
    assert one_token(1, math.log(1.5), ImportanceSampling())[:2] == pytest.approx((-1.5, -1.5))
    assert one_token(1, math.log(1.5), SFT())[:2] == pytest.approx((1.0, -1.0))


def test_a_preference_at_the_reference_is_ln_2():
    world = World.of(frozenset({"pairs", "ref_logp"}))
    objective = Objective.of(PairPreference())
    world.batch.measured["ref_logp"] = world.leaves(objective)["logp"].detach().numpy()
    assert world.gradient(objective).loss == pytest.approx(0.693147, abs=1e-6)


@pytest.mark.parametrize(
    ("option", "component"),
    [
        ("advantage/grpo", GroupRelative()),
        ("advantage/rloo", LeaveOneOut()),
        ("advantage/reinforce", Reinforce()),
        ("loss/ppo", PPOClip()),
        ("loss/importance_sampling", ImportanceSampling()),
        ("loss/sft", SFT()),
        ("correction/truncated_is", TruncatedIS()),
    ],
)
def test_an_option_is_its_dataclass(option, component):
    text = (CONF / f"{option}.yaml").read_text()
    values = yaml.safe_load(text)
    assert values.pop("name") == option.split("/")[1]
    assert values == vars(component)
    assert text.startswith("# @package corrections.") == option.startswith("correction")
