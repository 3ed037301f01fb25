"""The contracts pass on what ships and on the toys, and each rule catches what it is for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from algo_tiny import LOSSES

from trinity_core.algo.batch import Credit, LossOutput
from trinity_core.builtins.advantages.grpo import GroupRelative
from trinity_core.builtins.advantages.reinforce import Reinforce
from trinity_core.builtins.advantages.rloo import LeaveOneOut
from trinity_core.builtins.corrections.truncated_is import TruncatedIS
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.protocols import Advantage, Correction, Loss
from trinity_core.testing.contracts import advantage, correction, loss
from trinity_core.testing.rules import NotApplicable
from trinity_core.testing.toys import BatchCentred, PerCall

torch.set_num_threads(1)
ADVANTAGES = (
    GroupRelative(),
    GroupRelative(normalize=False),
    GroupRelative(std_level="batch"),
    LeaveOneOut(),
    Reinforce(),
    PerCall(),
)


def ask(rule, component):
    try:
        rule(component)
    except NotApplicable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("rule", loss.RULES)
@pytest.mark.parametrize("component", LOSSES, ids=lambda one: type(one).__name__)
def test_losses_keep_their_contract(component, rule):
    ask(loss.RULES[rule], component)


@pytest.mark.parametrize("rule", advantage.RULES)
@pytest.mark.parametrize("component", ADVANTAGES, ids=lambda one: type(one).__name__)
def test_advantages_keep_their_contract(component, rule):
    ask(advantage.RULES[rule], component)


@pytest.mark.parametrize("rule", correction.RULES)
def test_corrections_keep_their_contract(rule):
    ask(correction.RULES[rule], TruncatedIS())


def test_every_rule_is_said_in_words():
    for module in (loss, advantage, correction):
        for name, rule in module.RULES.items():
            assert rule.__doc__, name


# --- each rule catches what it is for ---


class Lost(Loss):
    """A loss of one expression, for the mistakes below."""

    expression = staticmethod(lambda batch: -batch.advantage_N * batch.logp_N)
    asks: frozenset[str] = frozenset()
    claims = frozenset({"inert_at_zero_advantage", "policy_gradient_at_ratio_1"})

    def needs(self):
        return self.asks

    def __call__(self, batch):
        return LossOutput.per_token(self.expression(batch))


def lost(expression, asks=(), **fields):
    body = {"expression": staticmethod(expression), "asks": frozenset(asks), **fields}
    return type("Lost", (Lost,), body)()


def per_token_mean(batch):
    return -batch.advantage_N * batch.logp_N / len(batch.logp_N)


def centred(batch):
    return -batch.advantage_N * (batch.logp_N - batch.logp_N.mean() * 0.5)


def neighbours(batch):
    return -batch.advantage_N * (batch.logp_N + 0.1 * batch.logp_N.roll(1))


MISTAKES = {
    "a bare detach": (
        "gradient agrees with finite differences",
        lost(lambda b: -b.advantage_N * b.logp_N.detach().exp() * b.logp_N),
    ),
    "a ratio to itself": (
        "claim reads_old_logp, both ways",
        lost(lambda b: -b.advantage_N * (b.logp_N - b.detach(b.logp_N)).exp(), claims=frozenset({"reads_old_logp"})),
    ),
    "divided by its own count": ("cuts change nothing", lost(per_token_mean)),
    "divided by its own count, twice": ("the kernel reduces", lost(per_token_mean)),
    "a mean over the micro-batch": ("cuts change nothing", lost(centred)),
    "reads its neighbour": ("order changes nothing", lost(neighbours)),
    "metrics that come and go": (
        "an empty part is zero",
        lost(
            lambda b: -b.advantage_N * b.logp_N,
            scope="batch",
            __call__=lambda self, b: (
                LossOutput.per_token(b.logp_N) if len(b.logp_N) else LossOutput.per_token(b.logp_N, extra=b.logp_N)
            ),
        ),
    ),
    "a false claim": ("claim inert_at_zero_advantage, both ways", lost(lambda b: -b.logp_N)),
    "a claim not made": (
        "claim inert_at_zero_advantage, both ways",
        lost(lambda b: -b.advantage_N * b.logp_N, claims=frozenset()),
    ),
    "another gradient on-policy": (
        "claim policy_gradient_at_ratio_1, both ways",
        lost(lambda b: -b.advantage_N * b.logp_N.exp()),
    ),
    "ascent": ("claim policy_gradient_at_ratio_1, both ways", lost(lambda b: b.advantage_N * b.logp_N)),
    "a wrong unit": ("is declared right", lost(lambda b: -b.logp_N, unit="sequence")),
    "an unknown reduction": ("is declared right", lost(lambda b: -b.logp_N, reduction="mean")),
    "no gradient": ("gradient agrees with finite differences", lost(lambda b: b.advantage_N)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_loss_is_caught(mistake):
    rule, component = MISTAKES[mistake]
    with pytest.raises((AssertionError, ValueError)):
        loss.RULES[rule](component)


def test_the_same_rules_pass_for_the_right_loss():
    right = lost(lambda b: -b.advantage_N * b.logp_N)
    for name, rule in loss.RULES.items():
        if name != "pickles":  # a class made here has no importable name
            rule(right)


def test_a_kink_is_drawn_again_and_not_blamed():
    """A clip at the very point where the first world stands: the second world decides."""
    from trinity_core.testing.contracts.loss import world_of

    first = world_of(lost(lambda b: b.logp_N)).leaves(loss.Objective.of(lost(lambda b: b.logp_N)))["logp"][0].item()
    kinked = lost(lambda b: -b.advantage_N * (b.logp_N - first).abs())
    loss.gradient_agrees_with_finite_differences(kinked)


def test_a_loss_that_reads_what_it_did_not_ask_for_is_caught():
    with pytest.raises(ValueError, match="old_logp"):
        loss.RULES["cuts change nothing"](lost(lambda b: -b.advantage_N * b.ratio_N))


def test_a_batch_scope_declared_as_tokens_is_caught():
    wrong = type("Wrong", (BatchCentred,), {"scope": "token"})()
    with pytest.raises(AssertionError, match="micro-batches"):
        loss.RULES["cuts change nothing"](wrong)


@dataclasses.dataclass(frozen=True)
class ByPosition(Advantage):
    """Mean over all attempts instead of the group."""

    claims = frozenset({"zero_on_constant_group", "shift_invariant"})

    def __call__(self, batch):
        first = np.nan_to_num(batch.reward_A) - np.nan_to_num(batch.reward_A)[0]
        return Credit(first)


def bad_advantage(compute, claims=()):
    body = {"__call__": lambda self, batch: compute(batch), "claims": frozenset(claims)}
    return type("Bad", (Advantage,), body)()


def population_std(batch):
    return Credit(np.nan_to_num(batch.reward_A))


ADVANTAGE_MISTAKES = {
    "by position": ("order changes nothing", ByPosition()),
    "group numbers as indices": (
        "group numbers mean nothing",
        bad_advantage(lambda b: Credit(b.group_A.astype(float))),
    ),
    "NaN for faults": ("gives finite credit", bad_advantage(lambda b: Credit(b.reward_A))),
    "faults as zeros": (
        "faults enter no baseline",
        bad_advantage(lambda b: Credit(np.nan_to_num(b.reward_A) - np.nan_to_num(b.reward_A).mean())),
    ),
    "equal by ==": (
        "claim zero_on_constant_group, both ways",
        bad_advantage(
            lambda b: Credit((b.reward_A - b.reward_A.mean()) / (b.reward_A.std() + 1e-20)), {"zero_on_constant_group"}
        ),
    ),
    "a claim not made": ("claim needs_group, both ways", type("Quiet", (GroupRelative,), {"claims": frozenset()})()),
    "a false claim": (
        "claim shift_invariant, both ways",
        type("Loud", (Reinforce,), {"claims": frozenset({"shift_invariant"})})(),
    ),
    "an unknown claim": ("claims are known", bad_advantage(population_std, {"perfect"})),
    "changes the lease": (
        "is pure",
        bad_advantage(lambda b: Credit(np.nan_to_num(np.add(b.reward_A, 1, out=b.reward_A)))),
    ),
    "wrong length": ("gives finite credit", bad_advantage(lambda b: Credit(np.zeros(1)))),
    "imports torch": (
        "imports no torch",
        type("Heavy", (Reinforce,), {"__module__": "trinity_core.builtins.losses.ppo"})(),
    ),
}


@pytest.mark.parametrize("mistake", ADVANTAGE_MISTAKES)
def test_a_wrong_advantage_is_caught(mistake):
    rule, component = ADVANTAGE_MISTAKES[mistake]
    with pytest.raises(AssertionError):
        advantage.RULES[rule](component)


def bad_correction(compute):
    return type("Bad", (Correction,), {"__call__": lambda self, batch: compute(batch)})()


def ratio_N(batch, old_N):
    return (old_N - batch.sampler_logp_N).clamp(max=0.7).exp()


CORRECTION_MISTAKES = {
    "a live weight": (
        "weights are constants",
        bad_correction(lambda b: (ratio_N(b, b.logp_N), torch.ones_like(b.logp_N, dtype=torch.bool))),
    ),
    "overflow": (
        "gives weight and keep",
        bad_correction(
            lambda b: ((b.old_logp_N - b.sampler_logp_N).exp(), torch.ones_like(b.logp_N, dtype=torch.bool))
        ),
    ),
    "keep as numbers": (
        "gives weight and keep",
        bad_correction(lambda b: (ratio_N(b, b.old_logp_N), torch.ones_like(b.logp_N))),
    ),
    "acts without need": (
        "agreement changes nothing",
        bad_correction(lambda b: (0.5 * ratio_N(b, b.old_logp_N), torch.ones_like(b.logp_N, dtype=torch.bool))),
    ),
    "normalised over the micro-batch": (
        "parts change nothing",
        bad_correction(
            lambda b: (
                ratio_N(b, b.old_logp_N) / ratio_N(b, b.old_logp_N).mean(),
                torch.ones_like(b.logp_N, dtype=torch.bool),
            )
        ),
    ),
}


@pytest.mark.parametrize("mistake", CORRECTION_MISTAKES)
def test_a_wrong_correction_is_caught(mistake):
    rule, component = CORRECTION_MISTAKES[mistake]
    with pytest.raises(AssertionError):
        correction.RULES[rule](component)


def test_a_dual_clip_at_one_is_refused():
    with pytest.raises(ValueError, match="dual_clip"):
        PPOClip(dual_clip=1.0)
