"""What every correction keeps to: constant weights, no effect where sampler and trainer agree, policy terms only."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import torch

from trinity_core.algo.batch import LossOutput, TrainBatch
from trinity_core.algo.cut import cut
from trinity_core.algo.loss_batch import LossBatch, Tape
from trinity_core.algo.objective import Objective
from trinity_core.builtins.losses.importance_sampling import ImportanceSampling
from trinity_core.config.schema import Kl
from trinity_core.protocols import Correction, Loss
from trinity_core.testing.rules import require
from trinity_core.testing.world import World

NEEDS = frozenset({"old_logp", "sampler_logp"})
EXACT = 1e-11
"""Relative difference allowed between two ways to the same float64 gradient."""


class _KlOnly(Loss):
    """No policy term: what is left is the kernel's."""

    def __call__(self, batch: LossBatch) -> LossOutput:
        return LossOutput([])


def _world(seed: int = 0, *, apart: bool = False, needs: frozenset[str] = NEEDS) -> World:
    """A world; ``apart``: sampler and trainer differ by 3 nats in each sequence that has an odd number, so that bounds act."""
    world = World.of(needs, seed=seed)
    if apart:
        batch, by = world.batch, 3.0 * (-1.0) ** seed
        batch.sampler_logp_N = np.where(batch.row_N % 2, batch.sampler_logp_N + by, batch.sampler_logp_N)
    return world


def _asked(
    correction: Correction, world: World, *, batch: TrainBatch | None = None, old: str = "measured", moved: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and keep; ``moved``: the present log-probabilities lowered by so much."""
    batch = world.batch if batch is None else batch
    with torch.no_grad():
        outputs = world.outputs(
            Objective.of(ImportanceSampling()), batch, torch.tensor(world.logits_NV), torch.tensor(world.value_N)
        )
    leaves = {name: (output - moved).requires_grad_() for name, output in outputs.items()}
    weight_N, keep_N = correction(LossBatch(batch, leaves, NEEDS, old=old, who=type(correction).__name__))
    return weight_N, keep_N


def gives_weight_and_keep(correction: Correction) -> None:
    """A finite weight, not negative, and a boolean, for every action token, however far apart the models are."""
    world = World.of(NEEDS)
    weight_N, keep_N = _asked(correction, world)
    size = (world.batch.num_actions,)
    require(
        tuple(weight_N.shape) == size and tuple(keep_N.shape) == size,
        f"shapes {tuple(weight_N.shape)} and {tuple(keep_N.shape)} for {size[0]} action tokens",
    )
    require(keep_N.dtype == torch.bool, f"keep is {keep_N.dtype}, not bool")
    require(bool(torch.isfinite(weight_N).all()) and bool((weight_N >= 0).all()), "a weight is negative or not finite")
    for apart in (-1e4, 1e4):
        far = World.of(NEEDS)
        far.batch.sampler_logp_N = far.batch.sampler_logp_N + apart
        weight_N, _ = _asked(correction, far)
        require(bool(torch.isfinite(weight_N).all()), "a large difference overflows. Clamp inside exp")


def weights_are_constants(correction: Correction) -> None:
    """The gradient is that of constant weights, also when old log-probabilities are this very forward's."""
    for old in ("measured", "forward"):
        weight_N, keep_N = _asked(correction, World.of(NEEDS), old=old)
        require(
            not weight_N.requires_grad and not keep_N.requires_grad,
            f"old={old}: weights carry a gradient. Pass what comes from logp through batch.detach",
        )
    for seed in range(4):
        world, objective = _world(seed, apart=True), Objective.of(ImportanceSampling(), [correction])
        leaves = world.leaves(objective)
        share, _ = objective(world.batch, leaves, detach=Tape())
        (found,) = torch.autograd.grad(share, [leaves["logp"]])
        weight_N, keep_N = _asked(correction, world)
        plain, _ = Objective.of(ImportanceSampling())(world.batch, leaves)
        (bare,) = torch.autograd.grad(plain, [leaves["logp"]])
        require(
            bool(torch.allclose(found, bare * weight_N * keep_N, rtol=1e-10, atol=1e-14)),
            "the corrected gradient is not weight × keep × the uncorrected one",
        )


def weights_leave_the_ratio_to_the_loss(correction: Correction) -> None:
    """Weights compare sampler and old policy; how far the policy has moved since is the loss's. A mask may read it."""
    for seed in range(3):
        world = _world(seed)
        (before, _), (after, _) = (_asked(correction, world, moved=moved) for moved in (0.0, 0.7))
        require(
            bool(torch.equal(before, after)),
            "a weight changes with the present log-probabilities: the loss's own ratio would count twice. Use old_logp_N",
        )


def agreement_changes_nothing(correction: Correction) -> None:
    """Where sampler and trainer agree, every weight is 1; where the policy has not moved either, every token is kept."""
    for old in ("measured", "forward"):
        world = World.of(NEEDS)
        leaves = world.leaves(Objective.of(ImportanceSampling()))
        world.batch.sampler_logp_N = world.batch.measured["old_logp"].copy()
        weight_N, _ = _asked(correction, world)
        require(
            bool((weight_N - 1).abs().max() < 1e-9), "weights differ from 1 though sampler and old policy are the same"
        )
        world.batch.measured["old_logp"] = leaves["logp"].detach().numpy().copy()
        world.batch.sampler_logp_N = world.batch.measured["old_logp"].copy()
        weight_N, keep_N = _asked(correction, world, old=old)
        require(
            bool(keep_N.all()) and bool((weight_N - 1).abs().max() < 1e-9),
            "weights differ from 1, or tokens are dropped, though nothing is to be corrected",
        )


def given_tokens_are_untouched(correction: Correction) -> None:
    """Tokens that nobody sampled have no sampler's log-probability: their weight is 1, whatever stands beside them."""
    world = _world(apart=True, needs=NEEDS | {"expert"})
    batch, size = world.batch, world.logits_NV.size
    batch.sampler_logp_N = np.where(np.arange(batch.num_actions) % 3 == 1, np.nan, batch.sampler_logp_N)
    given_N = np.isnan(batch.sampler_logp_N)
    plain = world.gradient(Objective.of(ImportanceSampling()))
    after = world.gradient(Objective.of(ImportanceSampling(), [correction]))
    rows = np.repeat(given_N, world.logits_NV.shape[1])
    require(np.isfinite(after.gradient).all(), "tokens without a sampler's log-probability made the gradient NaN")
    require(
        np.allclose(plain.gradient[:size][rows], after.gradient[:size][rows], rtol=1e-12, atol=0),
        "tokens that nobody sampled were weighed",
    )


def given_tokens_weigh_on_no_other(correction: Correction) -> None:
    """A sequence in which some tokens were given has the weights that its sampled tokens have without them."""
    for seed in range(3):
        world = _world(seed, apart=True)
        batch = world.batch
        given_N = np.arange(batch.num_actions) % 4 == 2
        batch.sampler_logp_N = np.where(given_N, np.nan, batch.sampler_logp_N)
        there = [part[torch.as_tensor(~given_N)] for part in _asked(correction, world)]
        alone = _asked(correction, world, batch=_without(batch, given_N))
        require(
            bool(torch.allclose(there[0], alone[0], rtol=1e-12)) and bool(torch.equal(there[1], alone[1])),
            "tokens that nobody sampled changed the weights of others in their sequence. Leave them out of sums and counts",
        )


def _without(batch: TrainBatch, gone_N: np.ndarray[Any, Any]) -> TrainBatch:
    """The batch with fewer action tokens."""
    names = (
        "action_N",
        "row_N",
        "temperature_N",
        "sampler_logp_N",
        "call_N",
        "position_N",
        "keep_N",
        "advantage_N",
        "returns_N",
    )
    arrays = {name: getattr(batch, name)[~gone_N] for name in names}
    measured = {name: array[~gone_N] for name, array in batch.measured.items()}
    extras = {
        name: (array[~gone_N] if axis == "action" else array, axis) for name, (array, axis) in batch.extras.items()
    }
    weight = {name: array[~gone_N] for name, array in batch.token_weight.items()}
    return dataclasses.replace(batch, **arrays, measured=measured, extras=extras, token_weight=weight)


def policy_terms_only(correction: Correction) -> None:
    """KL keeps its weight, and no denominator changes: corrections multiply policy terms only."""
    world = _world(apart=True)
    world.batch.coef = {"kl": 0.5}
    kl = Kl("k3", 0.5)
    before = world.gradient(Objective.of(_KlOnly(), kl=kl))
    after = world.gradient(Objective.of(_KlOnly(), [correction], kl=kl))
    require(before.differs(after) == 0.0, "the KL term was weighed")


def is_declared_right(correction: Correction) -> None:
    """``scope`` is the smallest set that weights depend on: each token, or each sequence, and no more; ``weighs`` says whether
    any weight is not 1."""
    require(correction.scope in ("token", "sequence"), f"scope {correction.scope!r} is unknown: token or sequence")
    beyond = wider = weighed = False
    for seed in range(4):
        world = _world(seed)
        batch = world.batch
        before = _asked(correction, world)
        weighed = weighed or bool((before[0] != 1).any())
        for place in range(batch.num_actions):
            for by in (-3.0, 3.0):
                sampler_N = batch.sampler_logp_N.copy()
                sampler_N[place] += by
                after = _asked(correction, world, batch=dataclasses.replace(batch, sampler_logp_N=sampler_N))
                changed_N = ((before[0] - after[0]).abs() > 1e-12) | (before[1] != after[1])
                same_N = torch.as_tensor(batch.row_N == batch.row_N[place])
                beyond = beyond or bool((changed_N & ~same_N).any())
                changed_N[place] = False
                wider = wider or bool(changed_N.any())
    require(
        weighed == correction.weighs,
        "a weight differs from 1: leave weighs as it is, True"
        if weighed
        else "all weights are 1. Declare weighs = False",
    )
    require(
        not beyond, "weights depend on other sequences: a correction sees one micro-batch, cut anywhere between them"
    )
    if correction.scope == "token":
        require(not wider, "weights depend on other tokens of the sequence. Declare scope = 'sequence'")
    else:
        require(wider, "no weight depends on another token of its sequence. Leave scope as it is, 'token'")


def parts_change_nothing(correction: Correction) -> None:
    """A sequence's weights are the same beside others and alone."""
    world = _world(apart=True)
    whole, kept = _asked(correction, world)
    for row in range(len(world.batch)):
        alone = _asked(correction, world, batch=world.batch.select([row]))
        own_N = torch.as_tensor(world.batch.row_N == row)
        require(
            bool(torch.allclose(alone[0], whole[own_N], rtol=1e-12)) and bool(torch.equal(alone[1], kept[own_N])),
            f"sequence {row} has other weights alone. A correction sees one micro-batch",
        )


def cuts_and_order_change_nothing(correction: Correction) -> None:
    """Loss and gradient are the same in one micro-batch and in many, direct and in two passes, and in any order."""
    for seed in range(2):
        world, objective = _world(seed, apart=True), Objective.of(ImportanceSampling(), [correction])
        whole = world.gradient(objective)
        for budget in (1, 12, 25):
            cuts = cut(world.batch, scope="sequence", max_tokens=budget)
            for two_pass in (False, True):
                away = whole.differs(world.gradient(objective, cuts=cuts, two_pass=two_pass))
                require(away <= EXACT, f"in {len(cuts)} micro-batches the gradient differs by {away:.3g} of its size")
        order = np.random.default_rng(seed).permutation(len(world.batch))
        away = whole.differs(world.gradient(objective, batch=world.batch.select(order)))
        require(away <= EXACT, f"in another order the gradient differs by {away:.3g} of its size")


def pickles(correction: Correction) -> None:
    """It goes to another process with the objective."""
    world, objective = World.of(NEEDS), Objective.of(ImportanceSampling(), [correction])
    require(
        world.gradient(objective).differs(world.gradient(pickle.loads(pickle.dumps(objective)))) == 0.0,
        "after pickling it weighs differently",
    )


RULES = {
    "gives weight and keep": gives_weight_and_keep,
    "weights are constants": weights_are_constants,
    "weights leave the ratio to the loss": weights_leave_the_ratio_to_the_loss,
    "agreement changes nothing": agreement_changes_nothing,
    "given tokens are untouched": given_tokens_are_untouched,
    "given tokens weigh on no other": given_tokens_weigh_on_no_other,
    "policy terms only": policy_terms_only,
    "is declared right": is_declared_right,
    "parts change nothing": parts_change_nothing,
    "cuts and order change nothing": cuts_and_order_change_nothing,
    "pickles": pickles,
}
