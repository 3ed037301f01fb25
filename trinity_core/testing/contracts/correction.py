"""What every correction keeps to: constant weights, no effect where sampler and trainer agree, policy terms only."""

from __future__ import annotations

import pickle

import numpy as np
import torch

from trinity_core.algo.batch import LossOutput
from trinity_core.algo.loss_batch import LossBatch, Tape
from trinity_core.algo.objective import Objective
from trinity_core.builtins.losses.importance_sampling import ImportanceSampling
from trinity_core.config.schema import Kl
from trinity_core.protocols import Correction, Loss
from trinity_core.testing.rules import require
from trinity_core.testing.world import World

NEEDS = frozenset({"old_logp", "sampler_logp"})


class _KlOnly(Loss):
    """No policy term: what is left is the kernel's."""

    def __call__(self, batch: LossBatch) -> LossOutput:
        return LossOutput([])


def _asked(correction: Correction, world: World, *, old: str = "measured") -> tuple[torch.Tensor, torch.Tensor]:
    leaves = world.leaves(Objective.of(ImportanceSampling()))
    weight_N, keep_N = correction(LossBatch(world.batch, leaves, NEEDS, old=old, who=type(correction).__name__))
    return weight_N, keep_N


def gives_weight_and_keep(correction: Correction) -> None:
    """A finite weight, not negative, and a boolean, for every action token; dropping all is not correcting."""
    world = World.of(NEEDS)
    weight_N, keep_N = _asked(correction, world)
    size = (world.batch.num_actions,)
    require(
        tuple(weight_N.shape) == size and tuple(keep_N.shape) == size,
        f"shapes {tuple(weight_N.shape)} and {tuple(keep_N.shape)} for {size[0]} action tokens",
    )
    require(keep_N.dtype == torch.bool, f"keep is {keep_N.dtype}, not bool")
    require(bool(torch.isfinite(weight_N).all()) and bool((weight_N >= 0).all()), "a weight is negative or not finite")
    world.batch.sampler_logp_N = world.batch.sampler_logp_N - 1e4  # as far apart as two models can be
    weight_N, _ = _asked(correction, world)
    require(bool(torch.isfinite(weight_N).all()), "a large difference overflows. Clamp inside exp")


def weights_are_constants(correction: Correction) -> None:
    """The gradient is that of constant weights, also when old log-probabilities are this very forward's."""
    for old in ("measured", "forward"):
        weight_N, keep_N = _asked(correction, World.of(NEEDS), old=old)
        require(
            not weight_N.requires_grad and not keep_N.requires_grad,
            f"old={old}: weights carry a gradient. Pass what comes from logp through batch.detach",
        )
    world, objective = World.of(NEEDS), Objective.of(ImportanceSampling(), [correction])
    leaves = world.leaves(objective)
    tape = Tape()
    share, _ = objective(world.batch, leaves, detach=tape)
    (found,) = torch.autograd.grad(share, [leaves["logp"]])
    weight_N, keep_N = _asked(correction, world)
    plain, _ = Objective.of(ImportanceSampling())(world.batch, leaves)
    (bare,) = torch.autograd.grad(plain, [leaves["logp"]])
    require(
        bool(torch.allclose(found, bare * weight_N * keep_N, rtol=1e-10, atol=1e-14)),
        "the corrected gradient is not weight × keep × the uncorrected one",
    )


def agreement_changes_nothing(correction: Correction) -> None:
    """Where sampler and trainer agree, every weight is 1 and every token is kept."""
    world = World.of(NEEDS)
    world.batch.sampler_logp_N = world.batch.measured["old_logp"].copy()
    weight_N, keep_N = _asked(correction, world)
    require(
        bool(keep_N.all()) and bool((weight_N - 1).abs().max() < 1e-9),
        "weights differ from 1 though nothing is to be corrected",
    )


def given_tokens_are_untouched(correction: Correction) -> None:
    """Tokens that nobody sampled have no sampler's log-probability: their weight is 1."""
    world = World.of(NEEDS | {"expert"})
    expert_N = world.batch.population_B[world.batch.row_N] == 2
    plain = world.gradient(Objective.of(ImportanceSampling()))
    after = world.gradient(Objective.of(ImportanceSampling(), [correction]))
    size = world.logits_NV.size
    rows = np.repeat(expert_N, world.logits_NV.shape[1])
    require(np.isfinite(after.gradient).all(), "tokens without a sampler's log-probability made the gradient NaN")
    require(
        np.allclose(plain.gradient[:size][rows], after.gradient[:size][rows], rtol=1e-12, atol=0),
        "tokens that nobody sampled were weighed",
    )


def policy_terms_only(correction: Correction) -> None:
    """KL keeps its weight, and no denominator changes: corrections multiply policy terms only."""
    world = World.of(NEEDS)
    world.batch.coef = {"kl": 0.5}
    kl = Kl("k3", 0.5)
    before = world.gradient(Objective.of(_KlOnly(), kl=kl))
    after = world.gradient(Objective.of(_KlOnly(), [correction], kl=kl))
    require(before.differs(after) == 0.0, "the KL term was weighed")


def parts_change_nothing(correction: Correction) -> None:
    """A sequence's weights are the same beside others and alone."""
    world = World.of(NEEDS)
    whole, _ = _asked(correction, world)
    for row in range(len(world.batch)):
        part = World(world.batch.select([row]), world.logits_NV, world.value_N)
        alone, _ = _asked(correction, part)
        require(
            bool(torch.allclose(alone, whole[torch.as_tensor(world.batch.row_N == row)], rtol=1e-12)),
            f"sequence {row} has other weights alone. A correction sees one micro-batch",
        )


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
    "agreement changes nothing": agreement_changes_nothing,
    "given tokens are untouched": given_tokens_are_untouched,
    "policy terms only": policy_terms_only,
    "parts change nothing": parts_change_nothing,
    "pickles": pickles,
}
