"""The fake model learns: the whole arithmetic of a step, from sampled tokens to better answers, by hand."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest

from trinity_core.algo.assemble import advantage_batch, apply_credit, assemble, mini_batches, set_weights
from trinity_core.algo.objective import Objective
from trinity_core.builtins.advantages.grpo import GroupRelative
from trinity_core.builtins.backends.fake import Fake, LiveFake
from trinity_core.builtins.engines.fake import FakeEngine, LiveFakeEngine
from trinity_core.builtins.losses.importance_sampling import ImportanceSampling
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.builtins.losses.sft import SFT
from trinity_core.config.schema import Critic, Optim
from trinity_core.testing.fakes import Digits, FakeRun, bare_config, fake_group
from trinity_core.testing.one_update import PolicyGradient, batch_for, trained_once
from trinity_core.testing.play import sample_groups
from trinity_core.types import Sampling

GREEDY = Sampling(temperature=0.0, max_tokens=4)
REDUCTIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm")


def opened(run: FakeRun | None = None, **fields) -> tuple[LiveFake, LiveFakeEngine]:
    run = run or FakeRun()
    backend, engine = Fake(**fields).open(run), FakeEngine().open(run)
    asyncio.run(engine.load(backend.publish(0, copy=False)))
    return backend, engine


def accuracy(engine: LiveFakeEngine, taskset: Digits) -> float:
    groups = sample_groups(engine, taskset, range(len(taskset)), 1, sampling=GREEDY)
    return float(np.mean([group.attempts[0].value for group in groups]))


def learn(run: FakeRun, *, steps: int, seed: int = 0, taskset: Digits | None = None):
    """GRPO with the clipped loss on every row, each step; (mean reward by step, backend, engine)."""
    taskset = taskset or Digits()
    backend, engine = opened(run)
    objective = Objective.of(PPOClip(), old="forward")
    rewards = []
    for step in range(steps):
        groups = sample_groups(engine, taskset, range(len(taskset)), 32, draw=step * len(taskset), seed=seed)
        batch = assemble(groups, seed=seed, step=step)
        scores = advantage_batch(groups, batch, needs=())
        apply_credit(batch, scores, GroupRelative()(scores))
        for update in mini_batches(batch):
            set_weights(update, "token_mean")
            backend.update(update, "policy", objective, lr_scale=1.0)
        asyncio.run(engine.load(backend.publish(step + 1, copy=False)))
        rewards.append(float(scores.reward_A.mean()))
    return rewards, backend, engine


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grpo_with_the_clipped_loss_learns_every_digit(seed):
    run = FakeRun(config=bare_config(seed=seed))
    rewards, _, engine = learn(run, steps=30, seed=seed)
    assert rewards[0] < 0.1, "one in forty at the start: half a chance to end, a tenth for the digit, half to end again"
    assert np.mean(rewards[-3:]) >= 0.9
    assert accuracy(engine, Digits()) >= 0.9


def test_two_runs_of_one_seed_are_the_same_bit_for_bit():
    first, second = (learn(FakeRun(), steps=4) for _ in range(2))
    assert first[0] == second[0] and first[1].digest() == second[1].digest()
    other = learn(FakeRun(config=bare_config(seed=1)), steps=4, seed=1)
    assert other[1].digest() != first[1].digest()


def test_constant_rewards_teach_nothing():
    backend, engine = opened()
    groups = sample_groups(engine, Digits(), range(4), 8, reward=lambda attempt: 1.0)
    batch = assemble(groups, seed=0, step=0)
    scores = advantage_batch(groups, batch, needs=())
    apply_credit(batch, scores, GroupRelative()(scores))
    set_weights(batch, "token_mean")
    before = backend.digest()
    backend.update(batch, "policy", Objective.of(PPOClip(), old="forward"), lr_scale=1.0)
    assert backend.digest() == before


# --- engine and backend -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_engine_and_backend_agree_to_the_last_digit(temperature):
    backend, engine = opened(noise=2.0)
    groups = sample_groups(engine, Digits(), range(10), 8, sampling=Sampling(temperature=1.0, max_tokens=12))
    batch = assemble(groups, seed=0, step=0)
    batch.temperature_N[:] = temperature
    found_N = backend.measure(batch, "policy", frozenset({"logp"}))["logp"]
    # what the engine gives for the same sequences, from the table divided by the temperature
    cooler = FakeEngine().open(FakeRun())
    cooler.table.logits_SV[:] = engine.table.logits_SV / np.float64(np.float32(temperature))
    scored = [asyncio.run(cooler.score(a.experiences[0].tokens_T)).logp_T for g in groups for a in g.attempts]
    assert np.abs(found_N - np.concatenate(scored)[batch.action_N]).max() <= 1e-12


def test_entropy_is_that_of_the_whole_distribution():
    backend, engine = opened(noise=1.0)
    batch = batch_for(backend)
    found_N = backend.measure(batch, "policy", frozenset({"entropy"}))["entropy"]
    scores = asyncio.run(engine.score(batch.tokens_T[: batch.offsets_B1[1]], topk=backend.tokenizer.vocab_size))
    logp_TV = scores.top_logp_TK[batch.action_N[batch.row_N == 0]]
    assert found_N[batch.row_N == 0] == pytest.approx(-(np.exp(logp_TV) * logp_TV).sum(1), abs=1e-12)


def test_the_top_of_the_teacher_is_measured_in_falling_order():
    backend, _ = opened(teacher_seed=5, noise=1.0)
    batch = batch_for(backend)
    found = backend.measure(batch, "teacher", frozenset({"logp", "topk:3"}))
    assert found["topk_ids"].shape == found["topk_logp"].shape == (batch.num_actions, 3)
    assert (np.diff(found["topk_logp"], axis=1) <= 0).all()
    assert not np.array_equal(found["logp"], backend.measure(batch, "policy", frozenset({"logp"}))["logp"])


# --- the gradient does not depend on how a batch is cut ---------------------------------------------------------------


def gradient(loss, reduction: str, *, micro_tokens: int, two_pass: bool = False, order=None) -> np.ndarray:
    """The gradient itself: after one step from nothing AdamW's mean is (1 − beta1) times it."""
    optim = Optim(clip_norm=None)
    run = FakeRun(config=bare_config(optim=optim))
    backend = Fake(micro_tokens=micro_tokens, two_pass=two_pass, noise=1.0).open(run)
    batch = batch_for(backend)
    if order is not None:
        batch = batch.select(order)
    set_weights(batch, reduction, max_attempt_tokens=8)
    backend.update(batch, "policy", Objective.of(loss, old="forward"), lr_scale=1.0)
    return backend.trained["policy"].mean / (1 - optim.betas[0])


@dataclasses.dataclass(frozen=True)
class Whole(ImportanceSampling):
    """A loss of scope batch: under a small budget it can only be done in two passes."""

    scope = "batch"


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "loss", [PPOClip(), ImportanceSampling(), SFT(), Whole(), PolicyGradient()], ids=lambda loss: type(loss).__name__
)
def test_cuts_passes_and_order_give_one_gradient(loss, reduction):
    whole = gradient(loss, reduction, micro_tokens=100_000)
    assert np.linalg.norm(whole) > 0
    cases = {
        "one sequence each": gradient(loss, reduction, micro_tokens=1),
        "a few sequences each": gradient(loss, reduction, micro_tokens=60),
        "two passes": gradient(loss, reduction, micro_tokens=60, two_pass=True),
        "another order": gradient(loss, reduction, micro_tokens=60, order=np.random.default_rng(0).permutation(12)),
    }
    off = {name: float(np.linalg.norm(found - whole) / np.linalg.norm(whole)) for name, found in cases.items()}
    assert max(off.values()) <= 1e-12, off


def test_the_gradient_is_the_derivative_of_the_loss():
    """Central differences on the logits of the states that the batch visits."""
    loss, step = ImportanceSampling(), 1e-6
    found = gradient(loss, "token_mean", micro_tokens=100_000)
    backend, _ = opened(noise=1.0)
    batch = batch_for(backend)
    # At ratio 1 the derivative of -A r is -A dlogp: Σ weight · -A · logp has the same one, and no ratio in it
    weight_N = batch.token_weight["all"] * -batch.advantage_N
    for state, token in np.argwhere(np.abs(found) > 1e-3)[::7]:
        ends = []
        for sign in (1, -1):
            backend.table.logits_SV[state, token] += sign * step
            ends.append(float((weight_N * backend.measure(batch, "policy", frozenset({"logp"}))["logp"]).sum()))
            backend.table.logits_SV[state, token] -= sign * step
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(found[state, token], abs=1e-8)


# --- the optimizer ----------------------------------------------------------------------------------------------------


def test_the_first_step_of_adam_is_the_learning_rate_in_the_gradient_s_direction():
    # mean/(1-b1) = g and square/(1-b2) = g², so the step is lr · g/|g| = lr at every weight with a gradient
    optim = Optim(lr=0.25, eps=1e-30, clip_norm=None)
    backend = Fake().open(FakeRun(config=bare_config(optim=optim)))
    before = backend.table.logits_SV.copy()
    trained_once(backend)
    change = np.abs(backend.table.logits_SV - before)
    moved = np.abs(backend.trained["policy"].mean) > 1e-12  # below that eps is felt
    assert change[moved] == pytest.approx(0.25, rel=1e-9)


def test_clipping_keeps_the_direction_and_reports_the_norm_before():
    def mean(clip_norm):
        backend = Fake().open(FakeRun(config=bare_config(optim=Optim(lr=0.1, clip_norm=clip_norm))))
        result = trained_once(backend)
        return backend.trained["policy"].mean / 0.1, result.grad_norm

    free, norm = mean(None)
    clipped, norm_again = mean(0.01)
    assert norm == norm_again == pytest.approx(np.linalg.norm(free))
    assert np.linalg.norm(clipped) == pytest.approx(0.01)
    assert clipped * norm == pytest.approx(free * 0.01)


def test_agreement_with_torch_s_adamw_over_several_steps():
    import torch

    optim = Optim(lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.05, clip_norm=None)
    backend = Fake(states=64).open(FakeRun(config=bare_config(optim=optim)))
    weight = torch.tensor(backend.table.logits_SV.copy(), requires_grad=True)
    theirs = torch.optim.AdamW([weight], lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.05)
    mean = np.zeros_like(backend.table.logits_SV)
    for step in range(4):
        trained_once(backend, seed=step, lr_scale=1 - 0.2 * step)
        gradient_SV = (backend.trained["policy"].mean - 0.8 * mean) / (1 - 0.8)
        mean = backend.trained["policy"].mean.copy()
        weight.grad = torch.from_numpy(gradient_SV)
        theirs.param_groups[0]["lr"] = 0.1 * (1 - 0.2 * step)
        theirs.step()
    assert backend.table.logits_SV == pytest.approx(weight.detach().numpy(), abs=1e-10)


# --- the critic -------------------------------------------------------------------------------------------------------


def test_the_critic_learns_the_mean_return_of_each_state():
    config = bare_config(critic=Critic(lr=0.05))
    backend = Fake(states=512).open(FakeRun(config=config))
    groups = [fake_group([1.0, 0.0], texts=["7", "7"])]
    for _ in range(200):
        batch = assemble(groups, seed=0, step=0)
        batch.returns_N = batch.reward_B[batch.row_N]
        batch.advantage_N = np.zeros(batch.num_actions)
        batch.measured["value"] = backend.measure(batch, "critic", frozenset({"value"}))["value"]
        set_weights(batch, "token_mean")
        backend.update(
            batch, "policy", Objective.of(ImportanceSampling(), clip_value=10.0, old="forward"), lr_scale=1.0
        )
    # two replies "7", one rewarded: half at both positions
    assert backend.measure(batch, "critic", frozenset({"value"}))["value"] == pytest.approx(0.5, abs=0.02)
