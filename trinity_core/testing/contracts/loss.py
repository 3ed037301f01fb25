"""What every loss keeps to: a right gradient, values that no cut or order changes, and claims that are true."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trinity_core.algo.accumulate import linearize, send
from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.cut import cut
from trinity_core.algo.loss_batch import LossBatch
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import REDUCTIONS, set_weights
from trinity_core.algo.stats import Stats
from trinity_core.protocols import Loss
from trinity_core.testing.contracts._differences import ADVICE, DRAWS, REACH, REACH_ON_POLICY, compare
from trinity_core.testing.rules import require
from trinity_core.testing.world import Outcome, World

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
    """Autograd's gradient of every output of the forward is that of central differences in float64, to 1e-6 of its norm,
    with all that passes through ``batch.detach`` held: near the old policy, far from it, and on-policy.

    Points nearer to a kink than 1e-3 are drawn again. On-policy there is one point only, so there a gradient at a kink must
    lie between its two sides, and may be 0. A bare ``.detach()``, ``.data`` or ``torch.no_grad()`` is not held, and fails here.
    """
    for spread in (0.05, 0.4, 1.5):
        _agrees(loss, Objective.of(loss), spread)
    _agrees(loss, Objective.of(loss, old="forward"), 0.4)


def _agrees(loss: Loss, objective: Objective, spread: float) -> None:
    on_policy = objective.old == "forward"
    where = "on-policy" if on_policy else f"{spread:g} nats from the old policy"
    kinks = flat = 0
    for seed in range(DRAWS):
        found = compare(objective, world_of(loss, seed, spread=spread), REACH_ON_POLICY if on_policy else REACH)
        if found.flat and not on_policy:
            flat += 1
            continue
        kinked_J = found.kinked_J
        if kinked_J.any() and not on_policy:
            kinks += 1
            continue
        wrong = found.wrong(~kinked_J) or found.wrong_side(kinked_J)
        again = (
            f" ({kinks} of {seed + 1} random batches had a kink within {REACH:g} and were drawn again)" if kinks else ""
        )
        require(not wrong, f"{where}: {wrong}{again}. {ADVICE}")
        return
    require(flat < DRAWS, f"{where}: the loss has no gradient at all in {DRAWS} random batches. Is all of it detached?")
    raise AssertionError(
        f"{where}: {kinks} of {DRAWS} random batches have a kink within {REACH:g} (the two one-sided differences disagree) and "
        f"{flat} no gradient, so none can be tested. Is a value rounded, or compared with itself or with a live value of another token?"
    )


def cuts_change_nothing(loss: Loss) -> None:
    """Loss and gradient are the same in one micro-batch and in many, as a backend plans them: cut between units of the loss's
    scope, in two passes where a unit does not fit (scope batch never does)."""
    world, objective = world_of(loss), Objective.of(loss)
    whole = world.gradient(objective)
    for budget in (1, 12, 25):
        two_pass = loss.scope == "batch"
        cuts = cut(world.batch, scope="sequence" if two_pass else loss.scope, max_tokens=budget)
        parts = world.gradient(objective, cuts=cuts, two_pass=two_pass)
        _same(f"cut into {len(cuts)} micro-batches", whole, parts)


def ranks_change_nothing(loss: Loss) -> None:
    """The shares of two ranks sum to those of one, with the same statistics: each rank has whole units of the scope, an uneven
    number, or nothing; in two passes, outputs are gathered and each rank sends back what it forwarded, cut anywhere."""
    world, objective = world_of(loss), Objective.of(loss)
    whole = world.gradient(objective)
    for first in (slice(0, None, 2), slice(0, 1), slice(0, 0)):
        if loss.scope != "batch":
            direct = [_rank(world, objective, rows) for rows in _dealt(world.batch.unit_B(loss.scope), first)]
            summed = Outcome(
                sum(part.loss for part in direct),
                np.sum([part.gradient for part in direct], axis=0),
                Stats.merged(part.stats for part in direct),
            )
            _same("over two ranks", whole, summed)
            _same_stats(whole.stats, summed.stats)
        ranks = _dealt(np.arange(len(world.batch)), first)
        _same("over two ranks in two passes", whole, _gathered(world, objective, ranks))


def _dealt(unit_B: NDArray[np.int64], first: slice) -> list[NDArray[np.int64]]:
    """Rows of two ranks: the first has these units, the second all others."""
    mine_B = np.isin(unit_B, np.unique(unit_B)[first])
    return [np.flatnonzero(mine_B), np.flatnonzero(~mine_B)]


def _rank(world: World, objective: Objective, rows: NDArray[np.int64]) -> Outcome:
    part = world.batch.select(rows)
    return world.gradient(objective, batch=part, cuts=[*cut(part, scope=objective.scope, max_tokens=12), np.arange(0)])


def _gathered(world: World, objective: Objective, ranks: list[NDArray[np.int64]]) -> Outcome:
    logits_NV, value_N = (torch.tensor(array, requires_grad=True) for array in (world.logits_NV, world.value_N))
    parts = [world.outputs(objective, world.batch.select(rows), logits_NV, value_N) for rows in ranks]
    outputs = {name: torch.cat([part[name].detach() for part in parts]) for name in parts[0]}
    weights, loss, stats = linearize(objective, world.batch.select(np.concatenate(ranks)), outputs)
    start = 0
    for part in parts:
        stop = start + len(part["logp"])
        send(part, {name: weight[start:stop] for name, weight in weights.items()})
        start = stop
    grads = [np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy() for leaf in (logits_NV, value_N)]
    return Outcome(loss, np.concatenate([grad.ravel() for grad in grads]), stats)


def _same_stats(one: Stats, other: Stats) -> None:
    mine, theirs = one.summary(), other.summary()
    for name in sorted(mine.keys() | theirs.keys()):
        away = abs(mine.get(name, np.inf) - theirs.get(name, np.inf))
        require(
            away <= 1e-9 * max(1.0, abs(mine.get(name, 0.0))),
            f"over two ranks, {name} is {theirs.get(name)}, over one {mine.get(name)}. A metric has one value per unit",
        )


def padding_changes_nothing(loss: Loss) -> None:
    """Tokens after the last action of a sequence, and sequences without any action, have no part in loss or gradient."""
    world, objective = world_of(loss), Objective.of(loss)
    _same("with padding", world.gradient(objective), world.gradient(objective, batch=_padded(world.batch)))


def _padded(batch: TrainBatch) -> TrainBatch:
    """The batch with one to three tokens after each sequence, and a sequence of three more at the end."""
    rows, pad_B = len(batch), np.arange(len(batch)) % 3 + 1
    tokens = np.insert(batch.tokens_T, np.repeat(batch.offsets_B1[1:], pad_B), 6)
    offsets_B1 = np.concatenate([[0], np.cumsum(batch.lengths_B() + pad_B)])
    before_B = offsets_B1[:-1] - batch.offsets_B1[:-1]

    def more(array_B: NDArray[Any], value: Any) -> NDArray[Any]:
        return np.append(array_B, np.array([value], dtype=array_B.dtype))

    return dataclasses.replace(
        batch,
        tokens_T=np.concatenate([tokens, np.full(3, 6, tokens.dtype)]),
        offsets_B1=np.append(offsets_B1, offsets_B1[-1] + 3),
        action_N=batch.action_N + before_B[batch.row_N],
        group_B=more(batch.group_B, batch.group_B.max() + 1),
        attempt_B=more(batch.attempt_B, batch.attempt_B.max() + 1),
        population_B=more(batch.population_B, 1),
        attempt_key_B=more(batch.attempt_key_B, rows),
        reward_B=more(batch.reward_B, np.nan),
        sequence_weight={name: more(weight_B, 0.0) for name, weight_B in batch.sequence_weight.items()},
    )


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
    """Prompts, and whatever was measured at dropped tokens, have no part in loss or gradient. Where a token's value depends on
    its whole unit, whole units are dropped; a loss of the batch must at least stay finite."""
    world, objective = world_of(loss), Objective.of(loss)
    dropped_N = np.arange(world.batch.num_actions) % 3 == 0
    if loss.scope not in ("token", "batch"):
        unit_B = world.batch.unit_B(loss.scope)
        dropped_N = np.isin(unit_B, np.unique(unit_B)[::3])[world.batch.row_N]
    world.batch.keep_N = ~dropped_N
    set_weights(world.batch, loss.reduction, max_attempt_tokens=8)
    clean = world.gradient(objective)
    after = world.gradient(objective, batch=_spoilt(world.batch, dropped_N))
    require(
        np.isfinite(after.loss) and np.isfinite(after.gradient).all(),
        f"NaN outside the counted action tokens reached the {'loss' if not np.isfinite(after.loss) else 'gradient'}",
    )
    if loss.scope == "batch":
        clean = world.gradient(objective, batch=_spoilt(world.batch, np.zeros_like(dropped_N)))
        after = world.gradient(objective)
    _same("with garbage outside action tokens", clean, after)


def _spoilt(batch: TrainBatch, dropped_N: NDArray[np.bool_]) -> TrainBatch:
    tokens_T = batch.tokens_T.copy()
    tokens_T[np.setdiff1d(np.arange(len(tokens_T)), batch.action_N)] = 6

    def spoil(array_N: NDArray[Any] | None) -> Any:
        return array_N if array_N is None or array_N.ndim > 1 else np.where(dropped_N, np.nan, array_N)

    lost_B = np.bincount(batch.row_N[~dropped_N], minlength=len(batch)) == 0
    return dataclasses.replace(
        batch,
        tokens_T=tokens_T,
        measured={name: spoil(array_N) for name, array_N in batch.measured.items()},
        advantage_N=spoil(batch.advantage_N),
        returns_N=spoil(batch.returns_N),
        sampler_logp_N=spoil(batch.sampler_logp_N),
        reward_B=np.where(lost_B, np.nan, batch.reward_B),
    )


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
        now_N = leaves["logp"].detach().numpy()
        world.batch.sampler_logp_N = np.where(np.isnan(world.batch.sampler_logp_N), np.nan, now_N)
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
    moved = 0.0
    for seed in range(3):
        world, objective = world_of(loss, seed), Objective.of(loss)
        before = world.gradient(objective)
        shift_N = (0.05 * np.arange(world.batch.num_actions)) % 0.3
        world.batch.measured["old_logp"] = world.batch.measured["old_logp"] + shift_N
        moved = max(moved, before.differs(world.gradient(objective)))
    _claim(loss, "reads_old_logp", moved > 1e-6, f"other old log-probabilities move the gradient by {moved:.3g}")


def _claim(loss: Loss, claim: str, holds: bool, evidence: str) -> None:
    if claim in loss.claims:
        require(holds, f"claims {claim}, but {evidence}")
    else:
        require(not holds, f"does not claim {claim}, but it holds ({evidence}). Add it to claims")


def _same(how: str, one: Outcome, other: Outcome, factor: float = 1.0) -> None:
    away = one.differs(other, factor)
    require(
        away <= EXACT,
        f"{how}: the gradient differs by {away:.3g} of its size (allowed {EXACT:g}). Values must depend on their own unit of the declared scope only",
    )
    require(
        abs(one.loss - other.loss / factor) <= 1e-10 * max(1.0, abs(one.loss)),
        f"{how}: the loss is {other.loss / factor:.12g}, not {one.loss:.12g}",
    )


def credit_is_read_or_not(loss: Loss) -> None:
    """``reads_advantage``: other advantages change the gradient; where it is False they change nothing, and a run with an
    advantage is refused."""
    world, objective = world_of(loss), Objective.of(loss)
    before = world.gradient(objective)
    assert world.batch.advantage_N is not None
    world.batch.advantage_N = world.batch.advantage_N + 1.0 + np.arange(world.batch.num_actions)
    moved = before.differs(world.gradient(objective))
    if loss.reads_advantage:
        require(moved > 0, "other advantages change nothing. Say so: reads_advantage: ClassVar[bool] = False")
    else:
        require(moved == 0, "it says reads_advantage = False, but other advantages change its gradient. Drop the line")


RULES = {
    "credit is read, or said not to be": credit_is_read_or_not,
    "is declared right": is_declared_right,
    "gradient agrees with finite differences": gradient_agrees_with_finite_differences,
    "cuts change nothing": cuts_change_nothing,
    "ranks change nothing": ranks_change_nothing,
    "order changes nothing": order_changes_nothing,
    "padding changes nothing": padding_changes_nothing,
    "two passes change nothing": two_passes_change_nothing,
    "the kernel reduces": kernel_reduces,
    "garbage outside action tokens changes nothing": garbage_outside_action_tokens_changes_nothing,
    "an empty part is zero": empty_part_is_zero,
    "pickles": pickles,
    "claim inert_at_zero_advantage, both ways": claim_inert_at_zero_advantage,
    "claim policy_gradient_at_ratio_1, both ways": claim_policy_gradient_at_ratio_1,
    "claim reads_old_logp, both ways": claim_reads_old_logp,
}
