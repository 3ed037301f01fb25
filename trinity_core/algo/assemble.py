"""Groups of a lease become one :class:`TrainBatch`, and an :class:`AdvantageBatch` over all their attempts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo.batch import AdvantageBatch, TrainBatch
from trinity_core.algo.credit import apply_credit, penalise
from trinity_core.algo.cut import cut, mini_batches, plan, predictor_N, uniform_N
from trinity_core.algo.reduce import set_weights
from trinity_core.errors import DataError
from trinity_core.types import Attempt, Call, Experience, Group, Ok, Origin

__all__ = [
    "advantage_batch",
    "apply_credit",
    "assemble",
    "cut",
    "mini_batches",
    "penalise",
    "plan",
    "predictor_N",
    "set_weights",
    "uniform_N",
]

OWN, EXPERT = 1, 2


def trainable(attempt: Attempt) -> bool:
    """Samples with a score, and what was given to be learned. Greedy attempts and faults are never trained."""
    return (
        isinstance(attempt.score, Ok) if attempt.role == "sample" else attempt.role in ("expert", "chosen", "rejected")
    )


def action_tokens(experiences: Sequence[Experience]) -> tuple[NDArray[np.int64], ...]:
    """:attr:`Experience.action_T` of all ``experiences`` at once, their tokens laid one behind the other.

    ``(offsets_B1, num_B, action_N, origin_N)``: where each experience begins, how many action tokens it has, where they
    stand, and their origins.
    """
    offsets_B1 = _offsets([len(experience.tokens_T) for experience in experiences])
    origin_T = _flat([experience.origin_T for experience in experiences], np.uint8)
    mask_T = (origin_T == Origin.SAMPLED) | (origin_T == Origin.TARGET)
    mask_T[offsets_B1[:-1][np.diff(offsets_B1) > 0]] = False  # nothing predicts a first token
    action_N = np.flatnonzero(mask_T)
    return offsets_B1, np.diff(np.searchsorted(action_N, offsets_B1)), action_N, origin_T[action_N]


def assemble(groups: Sequence[Group], *, seed: int, step: int) -> TrainBatch:
    """The trainable sequences of ``groups``, in order.

    Attempts and calls are numbered over *all* attempts of the groups, also those left out, so that numbers mean the same in
    :func:`advantage_batch`. Sequences without an action token are left out. A sampled token whose log-probability is
    missing (NaN) is no action and counts in ``counts["missing_logp"]``. Raises :class:`DataError` on contradicting extras
    and on pairs of attempts with more than one sequence.
    """
    attempts = [attempt for group in groups for attempt in group.attempts]
    trained = [trainable(attempt) for attempt in attempts]
    experiences: list[Experience] = []  # E: what is trained; B, the batch's sequences, are those with an action
    attempt_of: list[int] = []
    first_call: list[int] = []
    calls: list[Call] = []
    for number, attempt in enumerate(attempts):
        for experience in attempt.experiences:
            if trained[number]:
                experiences.append(experience)
                attempt_of.append(number)
                first_call.append(len(calls))
            calls += experience.calls

    offsets_E1, num_E, place_N, origin_N = action_tokens(experiences)
    logp_N = _flat([experience.logp_T for experience in experiences], np.float32)[place_N]
    known_N = (origin_N != Origin.SAMPLED) | ~np.isnan(logp_N)
    of_N = np.repeat(np.arange(len(experiences)), num_E)
    known_E = np.bincount(of_N[known_N], minlength=len(experiences))
    kept_B = np.flatnonzero(known_E)
    sequences = [experiences[index] for index in kept_B.tolist()]

    # from here on: the known actions of the kept sequences
    place_N, origin_N, logp_N = place_N[known_N], origin_N[known_N], logp_N[known_N]
    offsets_B1 = _offsets(np.diff(offsets_E1)[kept_B])
    row_N = np.repeat(np.arange(len(sequences)), known_E[kept_B])
    attempt_B = np.array(attempt_of, dtype=np.int64)[kept_B]
    call_N = _call_T(experiences, offsets_E1, first_call)[place_N]
    # a token without a call (-1) reads the last entry
    step_N = np.array([*(call.step for call in calls), 0], dtype=np.int64)[call_N]
    temperature_K = np.array([*(call.sampling.logp_temperature for call in calls), 1.0], dtype=np.float32)
    roles = [attempts[number].role for number in attempt_B.tolist()]
    sampled_B = np.bincount(row_N, origin_N == Origin.SAMPLED, minlength=len(sequences)) > 0
    own_B = [role == "sample" or (role != "expert" and sampled) for role, sampled in zip(roles, sampled_B.tolist())]
    pairs_P2, lost = _pairs(groups, attempt_B)
    return TrainBatch(
        tokens_T=_flat([experience.tokens_T for experience in sequences], np.int32),
        offsets_B1=offsets_B1,
        action_N=place_N + (offsets_B1[:-1] - offsets_E1[kept_B])[row_N],
        row_N=row_N,
        temperature_N=temperature_K[call_N],
        sampler_logp_N=logp_N,
        group_B=np.repeat(np.arange(len(groups)), [len(group.attempts) for group in groups])[attempt_B],
        attempt_B=attempt_B,
        population_B=np.where(own_B, OWN, EXPERT).astype(np.uint8),
        attempt_key_B=_keys(groups)[attempt_B],
        position_N=_position_N(attempt_B[row_N], step_N),
        call_N=call_N,
        reward_B=_rewards(attempts)[attempt_B],
        pairs_P2=pairs_P2,
        keep_N=np.ones(len(row_N), dtype=np.bool_),
        extras=_extras(sequences, num_E[kept_B], known_N[known_E[of_N] > 0]),
        counts={
            "missing_logp": len(known_N) - len(row_N),
            "untrained_attempts": trained.count(False),
            "empty_sequences": len(experiences) - len(sequences),
            "lost_pairs": lost,
        },
        seed=seed,
        step=step,
    )


def _call_T(
    experiences: Sequence[Experience], offsets_E1: NDArray[np.int64], first: Sequence[int]
) -> NDArray[np.int64]:
    """Call of each token (-1: none), where ``first`` is the number of each experience's first call."""
    call_T = np.full(offsets_E1[-1], -1, dtype=np.int64)
    for experience, offset, stop, first_call in zip(experiences, offsets_E1.tolist(), offsets_E1[1:].tolist(), first):
        for number, call in enumerate(experience.calls, first_call):
            call_T[offset + call.start : min(offset + call.stop, stop)] = number
    return call_T


def _position_N(attempt_N: NDArray[np.int64], step_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of each token in its attempt's own order: by step of its call, then as they stand. ``attempt_N`` ascends."""
    num_A = np.bincount(attempt_N)
    position_N = np.empty(len(attempt_N), dtype=np.int64)
    position_N[np.lexsort((step_N, attempt_N))] = np.arange(len(attempt_N)) - (np.cumsum(num_A) - num_A)[attempt_N]
    return position_N


def _keys(groups: Sequence[Group]) -> NDArray[np.uint64]:
    """Key of each attempt. The run's id is the first part of a group's and enters nothing that is computed."""
    names = (f"{group.id.rpartition('/')[2]}:{index}" for group in groups for index in range(len(group.attempts)))
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def _rewards(attempts: Iterable[Attempt]) -> NDArray[np.float64]:
    values = [attempt.value for attempt in attempts]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _pairs(groups: Sequence[Group], attempt_B: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """(chosen, rejected) sequences, and how many pairs have lost a side."""
    names = [(number, index) for number, group in enumerate(groups) for index in range(len(group.attempts))]
    rows_of: dict[tuple[int, int], list[int]] = {}
    for row, attempt in enumerate(attempt_B.tolist()):
        rows_of.setdefault(names[attempt], []).append(row)
    found, lost = [], 0
    for number, group in enumerate(groups):
        for chosen, rejected in group.pairs:
            sides = [rows_of.get((number, index), []) for index in (chosen, rejected)]
            if any(len(side) > 1 for side in sides):
                raise DataError(
                    f"group {group.id}: a side of pair ({chosen}, {rejected}) has more than one sequence. Pair attempts of one sequence each"
                )
            if all(sides):
                found.append((sides[0][0], sides[1][0]))
            else:
                lost += 1
    return np.array(found, dtype=np.int64).reshape(-1, 2), lost


def _extras(
    sequences: Sequence[Experience], num_B: NDArray[np.int64], known_N: NDArray[np.bool_]
) -> dict[str, tuple[NDArray[Any], str]]:
    """Named arrays, flat; a sequence that lacks one gets NaN (-1 for whole numbers). Call extras do not travel here.

    ``known_N``: which of each sequence's ``num_B`` action tokens stay.
    """
    columns: dict[str, tuple[NDArray[Any], str]] = {}
    for experience in sequences:
        for name, extra in experience.extras.items():
            array, axis = columns.setdefault(name, (extra.array, extra.axis))
            if axis != extra.axis or array.shape[1:] != extra.array.shape[1:]:
                raise DataError(
                    f"extra {name!r}: axis {axis} {array.shape[1:]} in one experience, {extra.axis} {extra.array.shape[1:]} in another"
                )
    if any(experience.token_reward_T is not None for experience in sequences):
        columns["token_reward"] = (np.zeros(0, np.float32), "token")
    result = {}
    for name, (sample, axis) in columns.items():
        if axis == "call":
            continue
        parts = []
        for experience, num in zip(sequences, num_B.tolist()):
            size = {"token": len(experience.tokens_T), "action": num, "sequence": 1}[axis]
            if name == "token_reward":
                given = experience.token_reward_T
                parts.append(np.zeros(size, np.float32) if given is None else given)
            elif name in experience.extras:
                parts.append(experience.extras[name].array)
            else:
                fill = np.nan if sample.dtype.kind == "f" else -1
                parts.append(np.full((size, *sample.shape[1:]), fill, dtype=sample.dtype))
        array = np.concatenate(parts)
        result[name] = (array[known_N] if axis == "action" else array, axis)
    return result


def _flat(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts, dtype=dtype, casting="unsafe") if parts else np.zeros(0, dtype=dtype)


def _offsets(lengths: Any) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def advantage_batch(groups: Sequence[Group], batch: TrainBatch, needs: Iterable[str]) -> AdvantageBatch:
    """Scores of all attempts of ``groups``; ``batch`` is :func:`assemble`'s of the same groups (all of them).

    ``needs`` names per-token arrays (``old_logp, ref_logp, sampler_logp, value, entropy, token_reward`` …); names that are
    no array (``greedy, state, step_reward``) ask for nothing more. Raises :class:`DataError` for one that was not measured.
    """
    attempts = [(number, attempt) for number, group in enumerate(groups) for attempt in group.attempts]
    calls = [
        (number, call) for number, (_, attempt) in enumerate(attempts) for e in attempt.experiences for call in e.calls
    ]
    attempt_N = batch.attempt_B[batch.row_N]
    trained_A = np.bincount(attempt_N, minlength=len(attempts))
    # attempts that are not trained (greedy) have no tokens in the batch and count their own
    num_A = [int(num) if trainable(attempt) else attempt.num_actions for num, (_, attempt) in zip(trained_A, attempts)]
    order_N = np.lexsort((batch.position_N, attempt_N))
    return AdvantageBatch(
        reward_A=_rewards(attempt for _, attempt in attempts),
        group_A=np.array([number for number, _ in attempts], dtype=np.int64),
        role_A=np.array([attempt.role for _, attempt in attempts], dtype=np.str_),
        num_actions_A=np.array(num_A, dtype=np.int64),
        reward_K=np.array([np.nan if call.reward is None else call.reward for _, call in calls], dtype=np.float64),
        state_K=np.array([call.state or "" for _, call in calls], dtype=np.str_),
        step_K=np.array([call.step for _, call in calls], dtype=np.int64),
        attempt_K=np.array([number for number, _ in calls], dtype=np.int64),
        attempt_N=attempt_N[order_N],
        call_N=batch.call_N[order_N],
        tokens={name: array.astype(np.float64)[order_N] for name, array in _arrays(batch, needs).items()},
        truncated_A=np.array([attempt.truncated for _, attempt in attempts], dtype=np.bool_),
        order_N=order_N,
    )


def _arrays(batch: TrainBatch, needs: Iterable[str]) -> dict[str, NDArray[Any]]:
    known = dict(batch.measured)
    known["sampler_logp"] = batch.sampler_logp_N
    for name, (array, axis) in batch.extras.items():
        if axis in ("token", "action"):
            known.setdefault(name, array[batch.action_N] if axis == "token" else array)
    optional = {"token_reward", "greedy", "expert", "pairs", "state", "step_reward", "entropy_grad"}
    missing = [need for need in needs if need.removeprefix("vocab:") not in known and need not in optional]
    if missing:
        raise DataError(
            f"the advantage needs {', '.join(sorted(missing))}, which was not measured. Measured: {', '.join(sorted(known))}"
        )
    names = {need.removeprefix("vocab:") for need in needs}
    return {name: array for name, array in known.items() if name in names}
