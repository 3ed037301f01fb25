"""What every loss keeps to: a right gradient, values that no cut or order changes, and claims that are true."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import torch

from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.cut import cut
from trinity_core.algo.loss_batch import LossBatch, Tape
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import REDUCTIONS, set_weights
from trinity_core.protocols import Loss
from trinity_core.testing.rules import NotApplicable, require
from trinity_core.testing.world import World

EXACT = 1e-11
"""Relative difference allowed between two ways to the same float64 gradient."""
CLAIMS = ("inert_at_zero_advantage", "policy_gradient_at_ratio_1", "reads_old_logp")


def world_of(loss: Loss, seed: int = 0, **changes: Any) -> World:
    return World.of(loss.needs(), reduction=loss.reduction, seed=seed, **changes)


def is_declared_right(loss: Loss) -> None:
    """Scope, reduction, unit and claims are words the kernel knows; the first term has the declared unit."""
    require(loss.scope in ("token", "sequence", "pair", "group", "batch"), f"scope {loss.scope!r} is unknown")
    require(
        loss.reduction in REDUCTIONS, f"reduction {loss.reduction!r} is unknown. Choose one of {', '.join(REDUCTIONS)}"
    )
    require(
        not set(loss.claims) - set(CLAIMS),
        f"claims {sorted(set(loss.claims) - set(CLAIMS))} are unknown. Known: {', '.join(CLAIMS)}",
    )
    world, objective = world_of(loss), Objective.of(loss)
    output = loss(LossBatch(world.batch, world.leaves(objective), loss.needs()))
    units = {term.unit for term in output.terms if term.policy}
    require(units <= {loss.unit}, f"terms of unit {sorted(units)}, declared unit {loss.unit!r}")


def gradient_agrees_with_finite_differences(loss: Loss) -> None:
    """Autograd's gradient of every output of the forward is that of central differences, in float64, with all that passes
    through ``batch.detach`` held. A bare ``.detach()`` fails here."""
    for old in ("measured", "forward"):
        objective = Objective.of(loss, old=old)
        for seed in range(20):  # a kink between two differences says nothing: draw again
            verdict = _difference(objective, world_of(loss, seed))
            if verdict is None:
                break
            require(
                verdict == "kink", f"old={old}: {verdict}. A constant must go through batch.detach(x), never x.detach()"
            )
        else:
            raise AssertionError(
                "20 draws of a random batch all had a kink within 1e-6: is a value compared with itself?"
            )


def _difference(objective: Objective, world: World, step: float = 1e-6) -> str | None:
    leaves = world.leaves(objective)
    tape = Tape()
    share, _ = objective(world.batch, leaves, detach=tape)
    require(share.requires_grad, "the loss has no gradient at all: did everything pass through detach?")
    found = torch.autograd.grad(share, list(leaves.values()), allow_unused=True)
    base = float(share.detach())

    def at(name: str, flat: int, by: float) -> float:
        moved = {key: leaf.detach().clone() for key, leaf in leaves.items()}
        moved[name].view(-1)[flat] += by
        return float(objective(world.batch, moved, detach=tape.rewind())[0])

    for name, exact in zip(leaves, found):
        gradient = torch.zeros_like(leaves[name]) if exact is None else exact
        scale = max(float(gradient.abs().max()), 1e-3)
        for flat, analytic in enumerate(gradient.reshape(-1).tolist()):
            above, below = at(name, flat, step), at(name, flat, -step)
            numeric = (above - below) / (2 * step)
            if abs(numeric - analytic) > 1e-5 * scale + 1e-8 * max(abs(base), 1.0):
                if abs(above - 2 * base + below) / step > 1e-2 * scale:
                    return "kink"
                return f"d loss / d {name}[{flat}] is {analytic:.8g} by autograd, {numeric:.8g} by finite differences"
    return None


def cuts_change_nothing(loss: Loss) -> None:
    """Loss and gradient are the same in one micro-batch and in many (cut between units of the loss's scope)."""
    if loss.scope == "batch":
        raise NotApplicable("its scope is the whole batch: it is never cut (two passes are)")
    world, objective = world_of(loss), Objective.of(loss)
    whole = world.gradient(objective)
    for budget in (1, 12, 25):
        cuts = cut(world.batch, scope=loss.scope, max_tokens=budget)
        parts = world.gradient(objective, cuts=cuts)
        _same(f"cut into {len(cuts)} micro-batches", whole, parts)


def order_changes_nothing(loss: Loss) -> None:
    """Loss and gradient are the same whatever the order of the sequences."""
    world, objective = world_of(loss), Objective.of(loss)
    whole = world.gradient(objective)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(world.batch))
        _same("in another order", whole, world.gradient(objective, batch=world.batch.select(order)))


def two_passes_change_nothing(loss: Loss) -> None:
    """The two-pass form, cut anywhere, gives the gradient of the direct form."""
    world, objective = world_of(loss), Objective.of(loss)
    whole = world.gradient(objective)
    for budget in (1, 25):
        cuts = cut(world.batch, scope="sequence", max_tokens=budget)
        _same(f"two passes over {len(cuts)} micro-batches", whole, world.gradient(objective, cuts=cuts, two_pass=True))


def kernel_reduces(loss: Loss) -> None:
    """Values are unreduced: a batch taken twice has the same mean, and twice the sum."""
    world, objective = world_of(loss), Objective.of(loss)
    whole = world.gradient(objective)
    twice = world.doubled()
    summed = world.gradient(objective, batch=twice)
    require(
        abs(summed.loss - 2 * whole.loss) <= 1e-9 * max(1.0, abs(whole.loss)),
        f"the sum over a batch taken twice is {summed.loss:.9g}, not twice {whole.loss:.9g}. Return values as they are: the kernel divides",
    )
    _same("the sum over a batch taken twice", whole, summed, factor=2.0)
    for reduction in REDUCTIONS if loss.unit == "token" else (loss.reduction,):
        set_weights(world.batch, reduction, max_attempt_tokens=8)
        set_weights(twice, reduction, max_attempt_tokens=8)
        _same(
            f"the {reduction} over a batch taken twice",
            world.gradient(objective),
            world.gradient(objective, batch=twice),
        )


def garbage_outside_action_tokens_changes_nothing(loss: Loss) -> None:
    """Prompts, and whatever was measured at dropped tokens, have no part in loss or gradient."""
    world, objective = world_of(loss), Objective.of(loss)
    dropped_N = np.zeros(world.batch.num_actions, dtype=np.bool_)
    if loss.scope == "token":
        dropped_N[::3] = True
    world.batch.keep_N = ~dropped_N
    set_weights(world.batch, loss.reduction, max_attempt_tokens=8)
    clean = world.gradient(objective)
    spoilt = _spoilt(world.batch, dropped_N)
    after = world.gradient(objective, batch=spoilt)
    require(
        np.isfinite(after.loss) and np.isfinite(after.gradient).all(),
        f"NaN outside the counted action tokens reached the {'loss' if not np.isfinite(after.loss) else 'gradient'}",
    )
    _same("with garbage outside action tokens", clean, after)


def _spoilt(batch: TrainBatch, dropped_N: Any) -> TrainBatch:
    tokens_T = batch.tokens_T.copy()
    tokens_T[np.setdiff1d(np.arange(len(tokens_T)), batch.action_N)] = 6
    measured = {name: _nan_at(dropped_N, array) for name, array in batch.measured.items()}
    advantage_N = None if batch.advantage_N is None else np.where(dropped_N, np.nan, batch.advantage_N)
    returns_N = None if batch.returns_N is None else np.where(dropped_N, np.nan, batch.returns_N)
    return dataclasses.replace(
        batch, tokens_T=tokens_T, measured=measured, advantage_N=advantage_N, returns_N=returns_N
    )


def _nan_at(dropped_N: Any, array: Any) -> Any:
    """The array, NaN at the dropped tokens: measured arrays are (N) or (N, …)."""
    return np.where(dropped_N.reshape(-1, *[1] * (array.ndim - 1)), np.nan, array)


def empty_part_is_zero(loss: Loss) -> None:
    """A part without any sequence (one rank's, say) has a share of exactly 0 and the same statistics' names."""
    world, objective = world_of(loss), Objective.of(loss)
    empty = world.batch.select([])
    share, stats = objective(
        empty, world.outputs(objective, empty, torch.tensor(world.logits_NV), torch.tensor(world.value_N))
    )
    require(
        float(share) == 0.0, f"the share of an empty part is {float(share)}. Divide by max(count, 1), or not at all"
    )
    stats.merge(world.gradient(objective).stats)


def pickles(loss: Loss) -> None:
    """The objective goes to another process and gives the same gradient there."""
    world, objective = world_of(loss), Objective.of(loss)
    _same("after pickling", world.gradient(objective), world.gradient(pickle.loads(pickle.dumps(objective))))


def claim_inert_at_zero_advantage(loss: Loss) -> None:
    """``inert_at_zero_advantage``: with advantages of 0 the gradient is 0; without the claim it is not."""
    found = []
    for seed in range(3):
        world = world_of(loss, seed)
        world.batch.advantage_N = np.zeros(world.batch.num_actions)
        found.append(float(np.abs(world.gradient(Objective.of(loss)).gradient).max()))
    _claim(
        loss, "inert_at_zero_advantage", max(found) == 0.0, f"the largest gradient at advantage 0 is {max(found):.3g}"
    )


def claim_policy_gradient_at_ratio_1(loss: Loss) -> None:
    """``policy_gradient_at_ratio_1``: on-policy the gradient is that of ``−A logp``, up to a positive factor."""
    worst, positive = 0.0, True
    for seed in range(3):
        world = world_of(loss, seed)
        objective = Objective.of(loss, old="forward")
        leaves = world.leaves(objective)
        share, _ = objective(world.batch, leaves)
        gradient = torch.autograd.grad(share, [leaves["logp"]], allow_unused=True)[0]
        found = np.zeros(world.batch.num_actions) if gradient is None else gradient.numpy()
        assert world.batch.advantage_N is not None
        wanted = -world.batch.advantage_N * world.batch.token_weight["all"]
        factor = float(found @ wanted) / float(wanted @ wanted)
        positive = positive and factor > 0
        worst = max(worst, float(np.linalg.norm(found - factor * wanted) / max(float(np.linalg.norm(found)), 1e-300)))
    _claim(
        loss, "policy_gradient_at_ratio_1", positive and worst < 1e-9, f"it is {worst:.3g} away from −A logp at ratio 1"
    )


def claim_reads_old_logp(loss: Loss) -> None:
    """``reads_old_logp``: the gradient depends on the old log-probabilities; without the claim it does not."""
    world, objective = world_of(loss), Objective.of(loss)
    before = world.gradient(objective)
    world.batch.measured["old_logp"] = (
        world.batch.measured["old_logp"] + 0.05 * np.arange(world.batch.num_actions) % 0.3
    )
    moved = before.differs(world.gradient(objective))
    _claim(loss, "reads_old_logp", moved > 1e-6, f"other old log-probabilities move the gradient by {moved:.3g}")


def _claim(loss: Loss, claim: str, holds: bool, evidence: str) -> None:
    if claim in loss.claims:
        require(holds, f"claims {claim}, but {evidence}")
    else:
        require(not holds, f"does not claim {claim}, but it holds ({evidence}). Add it to claims")


def _same(how: str, one: Any, other: Any, factor: float = 1.0) -> None:
    away = one.differs(other, factor)
    require(
        away <= EXACT,
        f"{how}: the gradient differs by {away:.3g} of its size (allowed {EXACT:g}). Values must depend on their own unit of the declared scope only",
    )


RULES = {
    "is declared right": is_declared_right,
    "gradient agrees with finite differences": gradient_agrees_with_finite_differences,
    "cuts change nothing": cuts_change_nothing,
    "order changes nothing": order_changes_nothing,
    "two passes change nothing": two_passes_change_nothing,
    "the kernel reduces": kernel_reduces,
    "garbage outside action tokens changes nothing": garbage_outside_action_tokens_changes_nothing,
    "an empty part is zero": empty_part_is_zero,
    "pickles": pickles,
    "claim inert_at_zero_advantage, both ways": claim_inert_at_zero_advantage,
    "claim policy_gradient_at_ratio_1, both ways": claim_policy_gradient_at_ratio_1,
    "claim reads_old_logp, both ways": claim_reads_old_logp,
}
