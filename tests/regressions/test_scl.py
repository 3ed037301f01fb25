"""Loss scaling and normalisation: no number depends on how an update was cut, and every denominator counts what it says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from trinity_core.algo.assemble import advantage_batch, apply_credit, assemble
from trinity_core.algo.batch import Credit, LossOutput, TrainBatch
from trinity_core.algo.cut import cut
from trinity_core.algo.objective import Objective, accumulate
from trinity_core.algo.reduce import REDUCTIONS, set_weights
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.builtins.losses.sft import SFT
from trinity_core.config.schema import Kl
from trinity_core.errors import DataError
from trinity_core.plugins import catalog, resolve
from trinity_core.protocols import Loss
from trinity_core.testing.contracts.loss import RULES
from trinity_core.testing.toys import TOY_LOSSES, ActorCritic, TwoPopulations
from trinity_core.testing.world import VOCAB, World, play

torch.set_num_threads(1)
NEEDS = frozenset({"old_logp", "expert", "pairs", "value", "teacher_logits"})


@dataclasses.dataclass(frozen=True)
class Constant(Loss):
    """Every token is worth ``value``: what a reduction does is then plain to see."""

    value: float = 4.0

    def __call__(self, batch):
        return LossOutput.per_token(batch.logp_N * 0 + self.value)


class Table(torch.nn.Module):
    """Next-token logits by the present token, in float32: one shared parameter, as in a real model."""

    def __init__(self) -> None:
        super().__init__()
        start = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
        self.logits = torch.nn.Parameter(start)

    def forward(self, part: TrainBatch):
        before, token = (torch.as_tensor(part.tokens_T[part.action_N - shift].astype(np.int64)) for shift in (1, 0))
        return {"logp": self.logits.log_softmax(-1)[before, token]}


def eight() -> TrainBatch:
    """Eight sequences of unequal lengths."""
    rng = np.random.default_rng(0)
    batch = assemble([play(rng, [[n]], name=str(n)) for n in (1, 2, 3, 5, 8, 13, 4, 9)], seed=0, step=0)
    batch.measured["old_logp"] = batch.sampler_logp_N.astype(np.float64)
    batch.advantage_N = rng.normal(size=8)[batch.row_N]
    return batch


def stepped(batch, sizes, *, optimizer=False):
    """Gradient (or weights after an Adam step) when the eight sequences come ``sizes`` at a time."""
    table = Table()
    cuts = np.array_split(np.arange(8), 8 // sizes)
    accumulate(Objective.of(PPOClip()), batch, cuts, table, two_pass=False)
    if not optimizer:
        return table.logits.grad
    torch.optim.Adam([table.logits], lr=0.1).step()
    return table.logits.detach()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_eight_by_one_four_by_two_and_one_by_eight_have_one_gradient(reduction):
    """SCL-01: unequal lengths, float32, rtol 1e-5."""
    batch = eight()
    set_weights(batch, reduction, max_attempt_tokens=13)
    whole = stepped(batch, 8)
    for sizes in (4, 2, 1):
        assert torch.allclose(stepped(batch, sizes), whole, rtol=1e-5, atol=1e-7)


def test_a_whole_step_ends_with_the_same_weights():
    """SCL-02: not the gradient alone: the weights after the optimizer's step."""
    batch = eight()
    set_weights(batch, "seq_mean_token_mean")
    assert torch.allclose(stepped(batch, 8, optimizer=True), stepped(batch, 1, optimizer=True), rtol=1e-5, atol=1e-6)


def test_the_kept_denominator_counts_after_every_mask():
    """SCL-03: a truncated completion dropped by credit is in no denominator when only kept tokens count."""
    group = play(np.random.default_rng(0), [[2], [6]], name="g")
    batch = assemble([group], seed=0, step=0)
    scores = advantage_batch([group], batch, set())
    truncated_N = scores.attempt_N == 1
    apply_credit(batch, scores, Credit(np.ones(2), keep_N=~truncated_N))
    set_weights(batch, "token_mean", denominator="kept")
    assert batch.denominators["all"] == {"tokens": 2, "sequences": 1, "pairs": 0}
    assert batch.token_weight["all"].tolist() == [0.5, 0.5, 0, 0, 0, 0, 0, 0]
    set_weights(batch, "token_mean", denominator="all")
    assert batch.denominators["all"]["tokens"] == 8


def test_an_empty_micro_batch_adds_nothing():
    """SCL-04: neither to the numerator nor to the denominator."""
    world = World.of(NEEDS)
    plain = world.gradient(Objective.of(PPOClip()), cuts=[np.arange(len(world.batch))])
    padded = world.gradient(Objective.of(PPOClip()), cuts=[np.arange(0), np.arange(len(world.batch)), np.arange(0)])
    assert padded.loss == plain.loss and plain.differs(padded) == 0.0
    assert padded.stats.summary() == plain.stats.summary()


def test_auxiliary_terms_have_global_denominators():
    """SCL-05: KL, entropy and an expert's term are the same in 1 and in many micro-batches, not as many times as large."""
    world = World.of(NEEDS)
    world.batch.coef = {"kl": 0.1, "entropy": 0.1}
    objective = Objective.of(TwoPopulations(), kl=Kl("k3", 0.1), entropy=True)
    cuts = cut(world.batch, scope="token", max_tokens=1)
    assert len(cuts) == len(world.batch)
    one, many = world.gradient(objective).stats.summary(), world.gradient(objective, cuts=cuts).stats.summary()
    for term in ("policy", "imitate", "kl", "entropy"):
        assert one[f"loss/{term}"] != 0
        assert many[f"loss/{term}"] == pytest.approx(one[f"loss/{term}"], rel=1e-12)


@pytest.mark.parametrize("objective", [Objective.critic(0.2), Objective.of(ActorCritic())], ids=["critic", "shared"])
def test_the_value_loss_does_not_depend_on_the_cut(objective):
    """SCL-06: the critic is accumulated as the policy is."""
    world = World.of(NEEDS)
    whole = world.gradient(objective)
    assert whole.differs(world.gradient(objective, cuts=cut(world.batch, scope="token", max_tokens=1))) < 1e-12


def test_a_custom_loss_is_divided_by_the_kernel():
    """SCL-07: a plugin's values are per token; a mean over tokens of 4s is 4, whatever the plugin knows of sizes."""
    world = World.of(frozenset())
    for reduction, wanted in (("token_mean", 4.0), ("seq_mean_token_mean", 4.0)):
        set_weights(world.batch, reduction)
        assert world.gradient(Objective.of(Constant())).loss == pytest.approx(wanted)


def every_loss() -> list[Loss]:
    return [resolve("loss", name)() for name in catalog("loss")] + [toy() for toy in TOY_LOSSES]


@pytest.mark.parametrize("loss", every_loss(), ids=lambda loss: type(loss).__name__)
def test_every_registered_loss_is_independent_of_the_cut(loss):
    """SCL-08, SCL-18: not only the common ones; and every gradient is finite."""
    world = World.of(loss.needs(), reduction=loss.reduction)
    objective = Objective.of(loss)
    whole = world.gradient(objective)
    assert np.isfinite(whole.gradient).all() and np.linalg.norm(whole.gradient) > 0
    parts = world.gradient(objective, cuts=cut(world.batch, scope="sequence", max_tokens=1), two_pass=True)
    assert whole.differs(parts) < 1e-12


def test_losses_of_16_over_4_action_tokens_are_4():
    """SCL-10: 16 / 4 = 4.0, not 16 / 6 with two masked tokens counted."""
    batch = assemble([play(np.random.default_rng(0), [[4, 2]], name="g")], seed=0, step=0)
    batch.keep_N[4:] = False
    set_weights(batch, "token_mean", denominator="kept")
    share, _ = Objective.of(Constant(4.0))(batch, {"logp": torch.zeros(6, dtype=torch.float64, requires_grad=True)})
    assert share.item() == 4.0


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_an_update_without_a_kept_token_is_zero_and_says_so(reduction):
    """SCL-11: finite 0 with gradient 0, and the statistics show that nothing was trained."""
    world = World.of(frozenset({"old_logp"}))
    world.batch.keep_N[:] = False
    for denominator in ("all", "kept"):
        set_weights(world.batch, reduction, denominator=denominator)
        found = world.gradient(Objective.of(PPOClip()))
        assert found.loss == 0.0 and not found.gradient.any()
        summary = found.stats.summary()
        assert (summary["tokens"], summary["kept"]) == (0.0, 0.0)
        assert np.isfinite(list(summary.values())).all()


def test_sequences_without_a_kept_token_are_in_no_mean():
    """SCL-14: two of three rows have tokens: the mean of their 4s is 4, not 8 / 3; for values per sequence too."""

    @dataclasses.dataclass(frozen=True)
    class PerSequence(Loss):
        unit = "sequence"
        scope = "sequence"

        def __call__(self, batch):
            return LossOutput.per_sequence(batch.seq_mean(batch.logp_N) * 0 + 4.0)

    batch = assemble([play(np.random.default_rng(0), [[2], [3], [1]], name="g")], seed=0, step=0)
    batch.keep_N[batch.row_N == 1] = False
    logp_N = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    for reduction in ("seq_mean_token_mean", "seq_mean_token_sum"):
        set_weights(batch, reduction, denominator="kept")
        assert Objective.of(PerSequence())(batch, {"logp": logp_N})[0].item() == pytest.approx(4.0)
    set_weights(batch, "seq_mean_token_mean", denominator="kept")
    assert Objective.of(Constant())(batch, {"logp": logp_N})[0].item() == pytest.approx(4.0)


class Meaned(Loss):
    def __call__(self, batch):
        return LossOutput.per_token((-batch.logp_N).mean())


class Divided(Loss):
    def __call__(self, batch):
        return LossOutput.per_token(-batch.logp_N / max(len(batch.logp_N), 1))


@pytest.mark.parametrize("loss", [Meaned(), Divided()])
def test_a_loss_that_reduces_by_itself_is_caught(loss):
    """SCL-16: a batch taken twice must have twice the sum; the kit says so, and a mean is refused outright."""
    with pytest.raises((AssertionError, DataError), match=r"as they are|unreduced"):
        RULES["the kernel reduces"](loss)


def test_credit_is_applied_once():
    """SCL-17: a second normalisation is refused."""
    group = play(np.random.default_rng(0), [[2], [3]], name="g")
    batch = assemble([group], seed=0, step=0)
    scores = advantage_batch([group], batch, set())
    apply_credit(batch, scores, Credit(np.array([1.0, -1.0])))
    with pytest.raises(DataError, match="already applied"):
        apply_credit(batch, scores, Credit(np.array([1.0, -1.0])))


def test_counts_are_those_of_the_items():
    """SCL-18: 24 predicted tokens are 24, not 25 with the first token of a sequence that nothing predicts."""
    group = play(np.random.default_rng(0), [[24]], name="g")
    group.attempts[0].experiences[0].origin_T[0] = 1  # a sequence that claims to have sampled its first token
    batch = assemble([group], seed=0, step=0)
    set_weights(batch, "token_mean")
    assert batch.denominators["all"]["tokens"] == 24 and 0 not in batch.action_N


def test_metrics_obey_the_mask_of_the_loss():
    """SCL-19: a metric averages over the tokens that count; there is no padding to average over."""

    @dataclasses.dataclass(frozen=True)
    class Measured(Loss):
        def __call__(self, batch):
            return LossOutput.per_token(-batch.logp_N, logp=batch.logp_N)

    world = World.of(frozenset())
    world.batch.keep_N[::2] = False
    set_weights(world.batch, "token_mean", denominator="kept")
    found = world.gradient(Objective.of(Measured()))
    assert found.stats.summary()["metric/logp"] == pytest.approx(-found.loss)
    assert found.stats.summary()["metric/logp"] == pytest.approx(-world.gradient(Objective.of(SFT())).loss)
