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
from trinity_core.types import Attempt, Experience, Group, Ok, Origin

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


def assemble(groups: Sequence[Group], *, seed: int, step: int) -> TrainBatch:
    """The trainable sequences of ``groups``, in order.

    Attempts and calls are numbered over *all* attempts of the groups, also those left out, so that numbers mean the same in
    :func:`advantage_batch`. Sequences without an action token are left out. A sampled token whose log-probability is
    missing (NaN) is no action and counts in ``counts["missing_logp"]``. Raises :class:`DataError` on contradicting extras
    and on pairs of attempts with more than one sequence.
    """
    builder = _Builder()
    for number, group in enumerate(groups):
        builder.add(number, group)
    return builder.batch(seed, step)


class _Builder:
    """Collects columns, one entry per sequence."""

    def __init__(self) -> None:
        self.sequences: list[Experience] = []
        self.actions: list[NDArray[np.int64]] = []
        self.kept: list[NDArray[np.bool_]] = []
        self.columns: dict[str, list[Any]] = {name: [] for name in ("group", "attempt", "population", "key", "reward")}
        self.temperature: list[NDArray[np.float32]] = []
        self.position: list[NDArray[np.int64]] = []
        self.call: list[NDArray[np.int64]] = []
        self.pairs: list[tuple[int, int]] = []
        self.num_attempts = self.num_calls = 0
        self.counts = dict.fromkeys(("missing_logp", "untrained_attempts", "empty_sequences", "lost_pairs"), 0)

    def add(self, number: int, group: Group) -> None:
        rows_of: dict[int, list[int]] = {}
        for index, attempt in enumerate(group.attempts):
            if trainable(attempt):
                rows_of[index] = self.attempt(number, group, index, attempt)
            else:
                self.counts["untrained_attempts"] += 1
            self.num_attempts += 1
            self.num_calls += sum(len(experience.calls) for experience in attempt.experiences)
        for chosen, rejected in group.pairs:
            sides = [rows_of.get(chosen, []), rows_of.get(rejected, [])]
            if any(len(side) > 1 for side in sides):
                raise DataError(
                    f"group {group.id}: a side of pair ({chosen}, {rejected}) has more than one sequence. Pair attempts of one sequence each"
                )
            if all(sides):
                self.pairs.append((sides[0][0], sides[1][0]))
            else:
                self.counts["lost_pairs"] += 1

    def attempt(self, number: int, group: Group, index: int, attempt: Attempt) -> list[int]:
        """Append the attempt's sequences; return their rows."""
        # The run's id is the first part of a group's and enters nothing that is computed.
        name = f"{group.id.rpartition('/')[2]}:{index}"
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        steps, rows, call = [], [], self.num_calls
        for experience in attempt.experiences:
            found = experience.action_T
            missing = (experience.origin_T[found] == Origin.SAMPLED) & np.isnan(experience.logp_T[found])
            self.counts["missing_logp"] += int(missing.sum())
            action_T = found[~missing].astype(np.int64)
            call_T = np.full(len(experience.tokens_T), -1, dtype=np.int64)
            step_T = np.zeros(len(experience.tokens_T), dtype=np.int64)
            temperature_T = np.ones(len(experience.tokens_T), dtype=np.float32)
            for entry in experience.calls:
                span = slice(entry.start, entry.stop)
                call_T[span], step_T[span], temperature_T[span] = call, entry.step, entry.sampling.logp_temperature
                call += 1
            if not len(action_T):
                self.counts["empty_sequences"] += 1
                continue
            rows.append(len(self.sequences))
            steps.append(step_T[action_T])
            self.sequences.append(experience)
            self.actions.append(action_T)
            self.kept.append(~missing)
            self.call.append(call_T[action_T])
            self.temperature.append(temperature_T[action_T])
            sampled = bool((experience.origin_T[action_T] == Origin.SAMPLED).any())
            own = attempt.role != "expert" and (attempt.role == "sample" or sampled)
            values = {"group": number, "attempt": self.num_attempts, "population": OWN if own else EXPERT, "key": key}
            for column, value in {**values, "reward": np.nan if attempt.value is None else attempt.value}.items():
                self.columns[column].append(value)
        if rows:  # tokens in the attempt's own order: by call, then as they stand
            rank = np.empty(sum(map(len, steps)), dtype=np.int64)
            rank[np.argsort(np.concatenate(steps), kind="stable")] = np.arange(len(rank))
            self.position += np.split(rank, np.cumsum([len(part) for part in steps])[:-1])
        return rows

    def batch(self, seed: int, step: int) -> TrainBatch:
        lengths = [len(experience.tokens_T) for experience in self.sequences]
        offsets_B1 = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        row_N = np.repeat(np.arange(len(lengths)), [len(actions) for actions in self.actions]).astype(np.int64)
        action_N = _flat(self.actions, np.int64) + offsets_B1[row_N]
        columns = self.columns
        return TrainBatch(
            tokens_T=_flat([experience.tokens_T for experience in self.sequences], np.int32),
            offsets_B1=offsets_B1,
            action_N=action_N,
            row_N=row_N,
            temperature_N=_flat(self.temperature, np.float32),
            sampler_logp_N=_flat([experience.logp_T for experience in self.sequences], np.float32)[action_N],
            group_B=np.asarray(columns["group"], dtype=np.int64),
            attempt_B=np.asarray(columns["attempt"], dtype=np.int64),
            population_B=np.asarray(columns["population"], dtype=np.uint8),
            attempt_key_B=np.asarray(columns["key"], dtype=np.uint64),
            position_N=_flat(self.position, np.int64),
            call_N=_flat(self.call, np.int64),
            reward_B=np.asarray(columns["reward"], dtype=np.float64),
            pairs_P2=np.asarray(self.pairs, dtype=np.int64).reshape(-1, 2),
            keep_N=np.ones(len(action_N), dtype=np.bool_),
            extras=self.extras(),
            counts=self.counts,
            seed=seed,
            step=step,
        )

    def extras(self) -> dict[str, tuple[NDArray[Any], str]]:
        """Named arrays, flat; a sequence that lacks one gets NaN (-1 for whole numbers). Call extras do not travel here."""
        columns: dict[str, tuple[NDArray[Any], str]] = {}
        for experience in self.sequences:
            for name, extra in experience.extras.items():
                array, axis = columns.setdefault(name, (extra.array, extra.axis))
                if axis != extra.axis or array.shape[1:] != extra.array.shape[1:]:
                    raise DataError(
                        f"extra {name!r}: axis {axis} {array.shape[1:]} in one experience, {extra.axis} {extra.array.shape[1:]} in another"
                    )
        if any(experience.token_reward_T is not None for experience in self.sequences):
            columns["token_reward"] = (np.zeros(0, np.float32), "token")
        result = {}
        for name, (sample, axis) in columns.items():
            if axis == "call":
                continue
            parts = []
            for experience, actions, kept in zip(self.sequences, self.actions, self.kept):
                size = {"token": len(experience.tokens_T), "action": len(actions), "sequence": 1}[axis]
                if name == "token_reward":
                    parts.append(
                        np.zeros(size, np.float32) if experience.token_reward_T is None else experience.token_reward_T
                    )
                elif name in experience.extras:
                    array = experience.extras[name].array
                    parts.append(array[kept] if axis == "action" else array)
                else:
                    parts.append(
                        np.full(
                            (size, *sample.shape[1:]), np.nan if sample.dtype.kind == "f" else -1, dtype=sample.dtype
                        )
                    )
            result[name] = (np.concatenate(parts), axis)
        return result


def _flat(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype=dtype)


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
        reward_A=np.array(
            [np.nan if attempt.value is None else attempt.value for _, attempt in attempts], dtype=np.float64
        ),
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
