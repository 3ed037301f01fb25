"""The contract of losses sees a gradient that is stopped behind the kernel's back, a kink, and what ranks or padding change."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from trinity_core.algo.batch import LossOutput
from trinity_core.algo.objective import Objective
from trinity_core.builtins.losses.gspo import GSPO
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.protocols import Loss
from trinity_core.testing.contracts import loss as contract
from trinity_core.testing.contracts._differences import ALLOWED, REACH, compare
from trinity_core.testing.toys import BatchCentred, PairPreference
from trinity_core.testing.world import World

torch.set_num_threads(1)
GRADIENT = contract.RULES["gradient agrees with finite differences"]


def made(compute: Any, **fields: Any) -> Loss:
    """A loss of one expression."""
    body = {
        "__call__": lambda self, batch: LossOutput.per_token(compute(batch)),
        "needs": lambda self: frozenset({"old_logp"}),
        **fields,
    }
    return type("Made", (Loss,), body)()


def without_grad(batch):
    logp_N = batch.logp_N
    with torch.no_grad():
        weight_N = logp_N.exp()
    return -batch.advantage_N * weight_N * logp_N


def all_without_grad(batch):
    with torch.no_grad():
        weight_N = batch.logp_N.exp()  # the batch keeps what it gave first
    return -batch.advantage_N * weight_N * batch.logp_N


STOPPED = {
    "a bare detach": lambda b: -b.advantage_N * b.logp_N.detach().exp() * b.logp_N,
    "data": lambda b: -b.advantage_N * b.logp_N.data.exp() * b.logp_N,
    "no_grad": without_grad,
    "no_grad, at the first reading": all_without_grad,
    "a detach that cancels": lambda b: -b.advantage_N * (b.logp_N - b.logp_N.detach()).exp(),
    "a detached ratio": lambda b: -b.advantage_N * b.ratio_N.detach() * b.logp_N,
    "a little of it": lambda b: -b.advantage_N * (b.logp_N + 1e-4 * b.logp_N.detach() ** 2),
    "at one token": lambda b: -b.advantage_N * torch.cat([b.logp_N[:-1], 0.1 * b.logp_N[-1:].detach() + b.logp_N[-1:]]),
}


@pytest.mark.parametrize("how", STOPPED)
def test_a_gradient_that_is_stopped_outside_batch_detach_fails_and_is_told_how(how):
    words = "outside batch.detach: write batch.detach(x), never x.detach(), x.data or torch.no_grad()"
    with pytest.raises(AssertionError, match=re.escape(words)):
        GRADIENT(made(STOPPED[how]))


def test_the_same_through_batch_detach_passes():
    GRADIENT(made(lambda b: -b.advantage_N * b.detach(b.logp_N.exp()) * b.logp_N))
    GRADIENT(made(lambda b: -b.advantage_N * (b.logp_N - b.detach(b.logp_N)).exp()))


class WrongByMillionths(torch.autograd.Function):
    """The identity, with a gradient that is 1 + ``by``."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 + ctx.by), None


@pytest.mark.parametrize(("by", "caught"), [(5e-7, False), (2e-6, True)])
def test_a_gradient_is_right_to_a_millionth_of_its_norm(by, caught):
    loss = made(lambda b: -b.advantage_N * WrongByMillionths.apply(b.ratio_N, by))
    if caught:
        with pytest.raises(AssertionError, match=r"allowed 1e-06"):
            GRADIENT(loss)
    else:
        GRADIENT(loss)


def test_finite_differences_leave_a_hundredth_of_what_is_allowed():
    """The error of the method itself, on a smooth loss far from the old policy."""
    found = compare(Objective.of(made(lambda b: -b.advantage_N * b.ratio_N)), World.of(frozenset({"old_logp"})), REACH)
    assert np.linalg.norm(found.autograd_J - found.central_J) < ALLOWED / 100 * found.norm
    assert not found.kinked_J.any()


@pytest.mark.parametrize(("away", "seen"), [(0.0, True), (0.3, True), (0.9, True), (1.1, False)])
def test_a_kink_is_seen_up_to_a_thousandth_away(away, seen):
    """Its slope jumps from −1 to 1, at ``away`` thousandths from the third token."""
    world = World.of(frozenset({"old_logp"}))
    at = float(world.leaves(Objective.of(PPOClip()))["logp"][2].detach()) + away * 1e-3
    found = compare(Objective.of(made(lambda b: (b.logp_N - at).abs())), world, REACH)
    assert found.kinked_J.nonzero()[0].tolist() == ([2] if seen else [])


def test_batches_with_a_kink_are_drawn_again_and_counted():
    """The token of the first two worlds stands at a kink; the third world decides, against the loss."""
    worlds = [contract.world_of(PPOClip(), seed, spread=0.05) for seed in range(2)]
    first, second = (float(world.leaves(Objective.of(PPOClip()))["logp"][0].detach()) for world in worlds)
    kinked = made(
        lambda b: -b.advantage_N * ((b.logp_N - first).abs() + (b.logp_N - second).abs() + b.logp_N.detach() ** 2)
    )
    with pytest.raises(AssertionError, match=r"\(2 of 3 random batches had a kink within 0.001 and were drawn again\)"):
        GRADIENT(kinked)


NOWHERE_SMOOTH = {
    "compared with itself": lambda b: -b.advantage_N * torch.maximum(b.logp_N, b.detach(b.logp_N)),
    "teeth everywhere": lambda b: -b.advantage_N * (b.logp_N % 1e-4),
    "rounded": lambda b: -b.advantage_N * (b.logp_N + (b.logp_N * 1e4).round() * 1e-4),
}


@pytest.mark.parametrize("how", NOWHERE_SMOOTH)
def test_a_loss_that_is_nowhere_smooth_fails_clearly(how):
    with pytest.raises(AssertionError, match=r"20 of 20 random batches have a kink within 0.001 .* none can be tested"):
        GRADIENT(made(NOWHERE_SMOOTH[how]))


def test_a_kink_of_the_on_policy_point_itself_needs_a_gradient_between_its_sides():
    """|d| has one at d = 0, where every token stands on-policy: 0 lies between −1 and 1, 2 does not."""
    GRADIENT(made(lambda b: (b.logp_N - b.old_logp_N).abs()))
    GRADIENT(made(lambda b: (b.logp_N - b.old_logp_N).abs() - b.advantage_N * b.logp_N))

    class TwoAtZero(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.abs()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * torch.where(x == 0, torch.full_like(x, 2.0), x.sign())

    with pytest.raises(AssertionError, match=r"on-policy: .* by the nearer side of a kink"):
        GRADIENT(made(lambda b: TwoAtZero.apply(b.logp_N - b.old_logp_N)))


def test_a_narrow_clip_range_is_no_kink_on_policy():
    GRADIENT(GSPO())


def test_a_loss_without_gradient_fails_clearly():
    with pytest.raises(AssertionError, match="no gradient at all"):
        GRADIENT(made(lambda b: b.advantage_N * b.detach(b.logp_N) + 0.0 * b.logp_N))


# --- ranks, padding, scopes -------------------------------------------------------------------------------------------


def test_what_a_rank_divides_by_its_own_count_is_caught():
    with pytest.raises(AssertionError, match="over two ranks"):
        contract.RULES["ranks change nothing"](made(lambda b: -b.advantage_N * b.logp_N / max(len(b.logp_N), 1)))


def test_a_metric_that_is_divided_by_a_rank_s_own_count_is_caught():
    class Counts(Loss):
        def __call__(self, batch):
            share_N = torch.ones_like(batch.logp_N) / max(len(batch.logp_N), 1)
            return LossOutput.per_token(-batch.logp_N, share=share_N)

    with pytest.raises(AssertionError, match=r"metric/share is .* A metric has one value per unit"):
        contract.RULES["ranks change nothing"](Counts())


@pytest.mark.parametrize("scope", ["token", "sequence", "group", "batch"])
def test_two_passes_over_two_ranks_need_every_output(scope):
    """A value that reads another sequence breaks the direct form of a narrow scope, and never the two-pass form."""
    loss = made(lambda b: -b.advantage_N * (b.logp_N - b.logp_N.sum() * 0.1), scope=scope)
    if scope == "batch":
        contract.RULES["ranks change nothing"](loss)
    else:
        with pytest.raises(AssertionError, match="over two ranks: "):
            contract.RULES["ranks change nothing"](loss)


def test_a_count_of_sequences_is_caught_by_padding():
    with pytest.raises(AssertionError, match="with padding"):
        contract.RULES["padding changes nothing"](
            made(lambda b: -b.advantage_N * b.logp_N / max(b.num_sequences, 1), scope="batch")
        )


@pytest.mark.parametrize("loss", [PairPreference(), BatchCentred()], ids=lambda one: type(one).__name__)
def test_a_loss_of_pairs_or_of_the_batch_is_asked_every_rule(loss):
    for rule in contract.RULES.values():
        rule(loss)  # a NotApplicable would fail here


def test_a_loss_that_reads_the_credit_it_says_it_does_not_is_caught():
    class Reads(BatchCentred):
        reads_advantage = False

    with pytest.raises(AssertionError, match="other advantages change its gradient"):
        contract.credit_is_read_or_not(Reads())


def test_a_dropped_unit_of_a_wide_scope_has_no_part():
    """What a pair loss measured in a dropped pair is nothing to the others."""

    class Leaks(PairPreference):
        scope = "pair"

        def __call__(self, batch):
            margin_B = batch.seq_sum(batch.logp_N - batch.ref_logp_N)
            delta_P = margin_B[batch.pairs[:, 0]] - margin_B[batch.pairs[:, 1]] + 0.01 * batch.reward_B.isnan().sum()
            return LossOutput.per_pair(-torch.nn.functional.logsigmoid(0.1 * delta_P))

    contract.RULES["garbage outside action tokens changes nothing"](PairPreference())
    with pytest.raises(AssertionError, match="garbage"):
        contract.RULES["garbage outside action tokens changes nothing"](Leaks())


# --- claims -----------------------------------------------------------------------------------------------------------


def test_on_policy_the_sampler_is_the_policy_too():
    """A ratio to the sampler is 1 there, and its loss may claim the policy gradient."""

    class Sampler(Loss):
        claims = frozenset({"inert_at_zero_advantage", "policy_gradient_at_ratio_1"})

        def needs(self):
            return frozenset({"sampler_logp"})

        def __call__(self, batch):
            away_N = batch.logp_N - batch.sampler_logp_N
            return LossOutput.per_token(-batch.advantage_N * torch.where(away_N.isnan(), batch.logp_N, away_N.exp()))

    contract.RULES["claim policy_gradient_at_ratio_1, both ways"](Sampler())


def test_a_claim_of_one_world_is_no_claim():
    """It reads the old policy where the reward is below 0 only: one lucky world has none."""

    class Failures(Loss):
        claims = frozenset({"reads_old_logp"})

        def needs(self):
            return frozenset({"old_logp"})

        def __call__(self, batch):
            failed_N = batch.spread(batch.reward_B) < 0
            return LossOutput.per_token(-torch.where(failed_N, batch.ratio_N, batch.logp_N))

    contract.RULES["claim reads_old_logp, both ways"](Failures())
