"""Preferences, values and experts, since there are such algorithms: where they start, and what their denominators count."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trinity_core.algo.assemble import advantage_batch, apply_credit, assemble
from trinity_core.algo.cut import cut
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.advantages.gae import GeneralizedAdvantage
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.losses.chord import Chord
from trinity_core.builtins.losses.dpo import DPO
from trinity_core.builtins.losses.geo_mean import GeoMean
from trinity_core.builtins.losses.gspo import GSPO
from trinity_core.builtins.losses.hinge import Hinge
from trinity_core.builtins.losses.ipo import IPO
from trinity_core.builtins.losses.mix import Mix
from trinity_core.builtins.losses.sppo import SPPO
from trinity_core.config.schema import Critic, Kl, Lora, Model, Optim
from trinity_core.plugins import catalog, resolve
from trinity_core.testing.fakes import FakeRun, bare_config, fake_group
from trinity_core.testing.tiny import make_tiny
from trinity_core.testing.world import World, play
from trinity_core.types import Ok, Origin

torch.set_num_threads(1)
PAIRED = frozenset({"pairs", "ref_logp"})
EVERY = frozenset({"old_logp", "ref_logp", "expert", "pairs", "value", "teacher_logits"})
LORA = Lora(rank=4, alpha=8.0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny")


def opened(folder, *, lora=None, micro_tokens=4096, critic=None, dtype="float32"):
    nodes = bare_config(model=Model(str(folder), dtype=dtype, lora=lora), optim=Optim(lr=1e-2), critic=critic)
    return Local(micro_tokens=micro_tokens).open(FakeRun(config=nodes))


# --- rewards and returns ----------------------------------------------------------------------------------------------


def test_a_critic_learns_the_reward_at_the_last_sampled_token_and_nowhere_else():
    """ADV-16: with padding and a tool's words behind the end of the reply, the return of gae is the reward at each token
    before it: nothing is searched for, in the reply or in the prompt, and no penalty is missing."""
    group = play(np.random.default_rng(0), [[3, 2], [4]], name="g")
    for attempt, reward in zip(group.attempts, (7.0, -2.0)):
        attempt.score = Ok(reward)
        one = attempt.experiences[0]
        end = one.tokens_T[one.action_T[-1]]
        one.tokens_T[0] = end  # the end token also begins the prompt
        one.tokens_T = np.append(one.tokens_T, [end, 0, 0]).astype(np.int32)
        one.origin_T = np.append(one.origin_T, [Origin.CONTEXT] * 3).astype(np.uint8)
        one.logp_T = np.append(one.logp_T, [np.nan] * 3).astype(np.float32)
    batch = assemble([group], seed=0, step=0)
    batch.measured["value"] = np.zeros(batch.num_actions)
    advantage = GeneralizedAdvantage(gamma=1.0, lam=1.0, whiten=False)
    scores = advantage_batch([group], batch, advantage.needs())
    assert scores.reward_N().tolist() == [0, 0, 0, 0, 7.0, 0, 0, 0, -2.0]
    apply_credit(batch, scores, advantage(scores))
    assert batch.returns_N.tolist() == batch.advantage_N.tolist() == [7.0] * 5 + [-2.0] * 4
    discounted = GeneralizedAdvantage(gamma=0.5, lam=1.0, whiten=False)(scores).returns_N
    # .5 to the power of the tokens still to come: the last has the whole reward
    assert discounted.tolist() == [7 / 16, 7 / 8, 7 / 4, 7 / 2, 7.0, -2 / 8, -2 / 4, -2 / 2, -2.0]


# --- where preferences start ------------------------------------------------------------------------------------------


def preferences(live):
    """Six attempts at two tasks, with pairs, as the reference of ``live`` sees them."""
    groups = [
        fake_group([1.0, 0.0, 0.5], lengths, draw=draw, row=draw, tokenizer=live.tokenizer)
        for draw, lengths in enumerate(([4, 7, 2], [1, 3, 9]))
    ]
    for group in groups:
        group.pairs = [(0, 1), (0, 2)]
    batch = assemble(groups, seed=0, step=0)
    set_weights(batch, "token_mean")
    batch.measured["ref_logp"] = live.measure(batch, "reference", frozenset({"logp"}))["logp"]
    return batch


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize(("loss", "start"), [(DPO(), np.log(2)), (IPO(beta=0.1), 25.0), (Hinge(), 1.0)])
def test_policy_and_reference_are_exactly_equal_before_the_first_update(tiny, loss, start, lora):
    """ADV-24: of a real model, dropout off: DPO begins at ln 2 = .693147, IPO at (1 / 2β)² = 25, hinge at 1, every margin 0."""
    live = opened(tiny, lora=lora)
    batch = preferences(live)
    own_N = live.measure(batch, "policy", frozenset({"logp"}))["logp"]
    assert np.array_equal(own_N, batch.measured["ref_logp"])
    result = live.update(batch, "policy", Objective.of(loss), lr_scale=0.01)
    assert result.loss == pytest.approx(start, rel=1e-6)
    assert abs(result.stats["metric/margin"]) < 1e-6 and result.grad_norm > 0
    again = live.update(batch, "policy", Objective.of(loss), lr_scale=0.01)
    assert again.loss < result.loss and again.stats["metric/margin"] > 1e-4, "the reference stays where it was"


def test_ipo_sums_a_side_and_its_metrics_count_what_the_loss_counts():
    """SCL-19: the log-ratio of an answer is its sum, as in the paper, with nothing divided by a length; margins and accuracy
    are of the same pairs, and of tokens that were sampled: context, however long, adds nothing."""
    world = World.of(PAIRED)
    objective = Objective.of(IPO(beta=0.1))
    batch = world.batch
    found = world.gradient(objective)
    logp_N = world.leaves(objective)["logp"].detach().numpy()
    delta_B = np.bincount(batch.row_N, logp_N - batch.measured["ref_logp"], len(batch))
    delta_P = delta_B[batch.pairs_P2[:, 0]] - delta_B[batch.pairs_P2[:, 1]]
    assert found.loss == pytest.approx(((delta_P - 5.0) ** 2).mean())
    summary = found.stats.summary()
    assert summary["metric/margin"] == pytest.approx(0.1 * delta_P.mean())
    assert summary["metric/accuracy"] == pytest.approx((delta_P > 0).mean())


# --- denominators -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [Mix(), Chord()], ids=["mix", "chord"])
def test_an_experts_term_does_not_grow_with_the_number_of_micro_batches(loss):
    """SCL-05: likelihood beside a policy gradient, with KL and entropy: one denominator for the whole update. 32 pieces would
    have made it 32 times as large."""
    world = World.of(EVERY)
    world.batch.coef = {"kl": 0.1, "entropy": 0.1}
    objective = Objective.of(loss, kl=Kl("k3", 0.1), entropy=True)
    cuts = cut(world.batch, scope="token", max_tokens=1)
    padded = [*cuts, *[np.arange(0)] * (32 - len(cuts))]
    one, many = world.gradient(objective), world.gradient(objective, cuts=padded)
    assert one.differs(many) < 1e-12
    terms = {name: value for name, value in one.stats.summary().items() if name.startswith("loss/")}
    assert {"loss/policy", "loss/expert", "loss/kl", "loss/entropy"} <= set(terms)
    for name, value in terms.items():
        assert value != 0 and many.stats.summary()[name] == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_models_value_loss_is_the_same_in_one_micro_batch_and_in_many(tiny, lora):
    """SCL-06: loss, gradient norm and the values after the step of a real critic."""
    found = []
    for micro_tokens in (1, 4096):
        live = opened(tiny, lora=lora, micro_tokens=micro_tokens, critic=Critic(lr=1e-2), dtype="float64")
        batch = preferences(live)
        batch.returns_N = np.linspace(-1, 1, batch.num_actions)
        batch.measured["value"] = live.measure(batch, "critic", frozenset({"value"}))["value"]
        batch.coef = {"value": 0.5}
        assert (len(cut(batch, scope="token", max_tokens=micro_tokens)) > 3) == (micro_tokens == 1)
        result = live.update(batch, "critic", Objective.critic(0.2), lr_scale=1.0)
        found.append((result.loss, result.grad_norm, live.measure(batch, "critic", frozenset({"value"}))["value"]))
    for one, other in zip(*found):
        assert np.asarray(one) == pytest.approx(np.asarray(other), rel=1e-9, abs=1e-9)
    assert found[0][1] > 1e-3


def every(kind):
    return [pytest.param(resolve(kind, name)(), id=name) for name in catalog(kind)]


@pytest.mark.parametrize("loss", every("loss"))
def test_every_registered_loss_has_one_gradient_however_its_units_are_dealt_out(loss):
    """SCL-08: for every loss there is: whole, and its own units one by one, two by two, and all in backwards order, differentiated
    piece by piece as a backend does it."""
    world = World.of(loss.needs(), reduction=loss.reduction)
    objective = Objective.of(loss)
    whole = world.gradient(objective)
    units = cut(world.batch, scope=objective.scope, max_tokens=1)
    twos = [np.concatenate(units[at : at + 2]) for at in range(0, len(units), 2)]
    for cuts in (units, twos, units[::-1]):
        assert whole.differs(world.gradient(objective, cuts=cuts)) < 1e-12


@pytest.mark.parametrize("correction", every("correction"))
@pytest.mark.parametrize("name", ["cispo", "ppo", "dapo", "gspo"])
def test_a_corrected_loss_has_one_gradient_however_it_is_cut(name, correction):
    """SCL-08: the losses of the report and its siblings, with each correction."""
    loss = resolve("loss", "ppo" if name == "dapo" else name)()
    world = World.of(loss.needs(), reduction="token_mean" if name == "dapo" else loss.reduction)
    objective = Objective.of(loss, [correction])
    cuts = cut(world.batch, scope=objective.scope, max_tokens=1)
    assert len(cuts) > 4
    assert world.gradient(objective).differs(world.gradient(objective, cuts=cuts)) < 1e-12


@pytest.mark.parametrize("loss", [GSPO(), GeoMean(), SPPO()], ids=["gspo", "geo_mean", "sppo"])
@pytest.mark.parametrize("reduction", ["seq_mean_token_mean", "seq_mean_token_sum"])
def test_a_row_without_a_kept_token_changes_no_sequence_loss(loss, reduction):
    """SCL-14: of the losses that were found with it: with one masked row among three, loss and gradient are those of the two
    alone."""
    world = World.of(loss.needs())
    masked = world.batch.select(np.arange(3))
    masked.keep_N = masked.row_N != 1
    alone = world.batch.select(np.array([0, 2]))
    found = []
    for batch in (masked, alone):
        set_weights(batch, reduction, by="experience", denominator="kept")
        found.append(world.gradient(Objective.of(loss), batch=batch))
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-12) and found[0].loss != 0
    assert found[0].differs(found[1]) < 1e-12
