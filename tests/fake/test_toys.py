"""Six algorithms that each ask something else of the trainer run on the fake backend, and do what they say."""

from __future__ import annotations

import numpy as np
import pytest

from trinity_core.algo.assemble import advantage_batch, apply_credit, assemble, set_weights
from trinity_core.algo.objective import Objective
from trinity_core.builtins.backends.fake import Fake, LiveFake
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.config.schema import Critic, Optim
from trinity_core.testing.fakes import FakeRun, bare_config, fake_group
from trinity_core.testing.toys import ActorCritic, BatchCentred, PairPreference, PerCall, TopKDistill, TwoPopulations
from trinity_core.types import Call, Sampling


@pytest.fixture(params=["direct", "two passes"])
def backend(request) -> LiveFake:
    config = bare_config(optim=Optim(lr=0.1), critic=Critic(lr=0.1))
    # 40 tokens hold two or three sequences: every case is cut
    return Fake(micro_tokens=40, two_pass=request.param == "two passes", teacher_seed=3, noise=0.5).open(
        FakeRun(config=config)
    )


def train(backend: LiveFake, batch, loss, *, steps: int = 40, old: str = "measured"):
    """The loss of every step, on one batch."""
    objective = Objective.of(loss, old=old)
    set_weights(batch, loss.reduction)
    batch.measured["old_logp"] = backend.measure(batch, "policy", frozenset({"logp"}))["logp"]
    batch.measured["ref_logp"] = backend.measure(batch, "reference", frozenset({"logp"}))["logp"]
    batch.measured["value"] = backend.measure(batch, "critic", frozenset({"value"}))["value"]
    return [backend.update(batch, "policy", objective, lr_scale=1.0) for _ in range(steps)]


def credited(groups, *, returns: bool = False):
    batch = assemble(groups, seed=0, step=0)
    known_B = np.nan_to_num(batch.reward_B, nan=0.5)
    batch.advantage_N = (known_B - 0.5)[batch.row_N]
    if returns:
        batch.returns_N = known_B[batch.row_N]
    return batch


def test_a_preferred_answer_becomes_likelier_than_the_other(backend):
    groups = [
        fake_group([None, None], [4, 5], row=row, draw=row, roles=["chosen", "rejected"], pairs=[(0, 1)])
        for row in range(4)
    ]
    results = train(backend, assemble(groups, seed=0, step=0), PairPreference())
    # log 2: no preference at the start, where policy and reference are one
    assert results[0].loss == pytest.approx(np.log(2))
    assert results[-1].loss < 0.5 and results[-1].stats["metric/won"] == 1.0


def test_own_and_expert_tokens_are_two_populations(backend):
    groups = [
        fake_group([1.0, 0.0, None], [3, 4, 6], row=row, draw=row, roles=["sample", "sample", "expert"])
        for row in range(3)
    ]
    batch = credited(groups)
    results = train(backend, batch, TwoPopulations())
    assert batch.denominators["own"]["tokens"] == 21 and batch.denominators["expert"]["tokens"] == 18
    assert results[-1].stats["loss/imitate"] < 0.5 * results[0].stats["loss/imitate"]
    assert results[-1].stats["loss/policy"] < results[0].stats["loss/policy"]


def test_a_loss_over_the_whole_batch_is_one_loss_in_any_cut(backend):
    batch = credited([fake_group([1.0, 0.0, 1.0], row=row, draw=row) for row in range(3)])
    results = train(backend, batch, BatchCentred())
    assert results[-1].loss < results[0].loss
    whole = Fake(micro_tokens=100_000, noise=0.5).open(FakeRun(config=bare_config(optim=Optim(lr=0.1))))
    once = train(
        whole, credited([fake_group([1.0, 0.0, 1.0], row=row, draw=row) for row in range(3)]), BatchCentred(), steps=1
    )
    assert once[0].loss == pytest.approx(results[0].loss, rel=1e-12)
    assert once[0].grad_norm == pytest.approx(results[0].grad_norm, rel=1e-12)


def test_actor_and_critic_learn_from_one_loss(backend):
    batch = credited([fake_group([1.0, 0.0], row=row, draw=row) for row in range(3)], returns=True)
    results = train(backend, batch, ActorCritic(), old="forward")
    assert results[-1].stats["loss/critic"] < 0.5 * results[0].stats["loss/critic"]
    gain = (
        backend.measure(batch, "policy", frozenset({"logp"}))["logp"] - batch.measured["old_logp"]
    ) * batch.advantage_N
    assert gain.sum() > 0


def test_credit_per_call_reaches_the_tokens_of_that_call(backend):
    group = fake_group([0.0, 0.0], [4, 4])
    for number, attempt in enumerate(group.attempts):
        experience = attempt.experiences[0]
        start = int(experience.action_T[0])
        # two calls of two tokens in states "a" and "b"; the first attempt's second call alone is rewarded
        experience.calls = [
            Call(start, start + 2, 0, [(0, 0)], Sampling(), state="a", reward=0.0),
            Call(start + 2, start + 4, 1, [(0, 0)], Sampling(), state="b", reward=float(number == 0)),
        ]
    batch = assemble([group], seed=0, step=0)
    scores = advantage_batch([group], batch, PerCall().needs())
    apply_credit(batch, scores, PerCall()(scores))
    assert batch.advantage_N.tolist() == [0, 0, 0.5, 0.5, 0, 0, -0.5, -0.5]
    train(backend, batch, PPOClip(clip_low=0.9, clip_high=9), steps=3)
    change_N = backend.measure(batch, "policy", frozenset({"logp"}))["logp"] - batch.measured["old_logp"]
    assert (change_N[[2, 3]] > 0).all() and (change_N[[6, 7]] < 0).all()
    assert np.abs(change_N[[0, 4]]).max() < np.abs(change_N[[2, 6]]).min()


def test_the_student_comes_to_the_teacher(backend):
    batch = assemble([fake_group([1.0, 0.0], [5, 6], row=row, draw=row) for row in range(3)], seed=0, step=0)
    batch.measured["teacher_hidden"] = backend.measure(batch, "teacher", frozenset({"hidden"}))["hidden"]
    results = train(backend, batch, TopKDistill())
    assert 0 <= results[-1].loss < 0.1 * results[0].loss
