"""What the trainer computes on. numpy up to :class:`LossBatch`, which is the first thing that holds tensors.

Shape suffixes: T tokens (flat over all sequences), N action tokens (flat), B sequences (experiences), A attempts, K calls,
P pairs, C chunk, V vocabulary. Arrays at action n describe the prediction *of* token n; the shift is done once, in
:func:`trinity_core.algo.cut.predictor_N`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trinity_core.errors import DataError

if TYPE_CHECKING:
    import torch


def ranges(starts: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.int64]:
    """``[s0, s0+1, …, s1, s1+1, …]``: ``counts[i]`` numbers from each ``starts[i]``.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64) if len(counts) else np.zeros(0, np.int64)
    return (np.repeat(np.asarray(starts) - before, counts) + np.arange(int(np.sum(counts)))).astype(np.int64)


POPULATIONS = ("all", "own", "expert")
"""*own*: attempts the policy played; *expert*: attempts that were given."""


@dataclass
class TrainBatch:
    """One update's (or one lease's) experiences, ragged and flat."""

    tokens_T: NDArray[np.int32]
    offsets_B1: NDArray[np.int64]
    """Sequence b is ``tokens_T[offsets_B1[b]:offsets_B1[b + 1]]``."""
    action_N: NDArray[np.int64]
    """Positions of action tokens in ``tokens_T``, ascending; never the first of a sequence."""
    row_N: NDArray[np.int64]
    """Sequence of each action token."""
    temperature_N: NDArray[np.float32]
    sampler_logp_N: NDArray[np.float32]
    """NaN for *target* tokens."""
    group_B: NDArray[np.int64]
    attempt_B: NDArray[np.int64]
    """Attempt of each sequence, numbered over the batch."""
    population_B: NDArray[np.uint8]
    """Index into :data:`POPULATIONS`: 1 own, 2 expert."""
    attempt_key_B: NDArray[np.uint64]
    """Hash of (group, attempt index): the same wherever the attempt lies."""
    position_N: NDArray[np.int64]
    """Number of the action token within its attempt."""
    call_N: NDArray[np.int64]
    """Call of each action token, numbered over the batch; -1 for *target* tokens without one."""
    reward_B: NDArray[np.float64]
    """Reward of each sequence's attempt; NaN where there is none."""
    pairs_P2: NDArray[np.int64]
    """(chosen, rejected) sequences."""
    keep_N: NDArray[np.bool_]
    """False: fixed before the step not to count; its values are 0."""
    measured: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays over action tokens that a backend measured: ``old_logp, ref_logp, value, entropy``."""
    advantage_N: NDArray[np.float64] | None = None
    returns_N: NDArray[np.float64] | None = None
    extras: dict[str, tuple[NDArray[Any], str]] = field(default_factory=dict)
    """Named arrays, flat over the batch, with their axis."""
    token_weight: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """By population: the factor of each token's value in the loss (:mod:`trinity_core.algo.reduce`), counted on the host."""
    sequence_weight: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    pair_weight: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    denominators: dict[str, dict[str, float]] = field(default_factory=dict)
    """By population: ``tokens, sequences, pairs`` of the update."""
    coef: dict[str, float] = field(default_factory=dict)
    """Coefficients the kernel evaluated for this step: ``kl, entropy, value``."""
    counts: dict[str, int] = field(default_factory=dict)
    """What assembly left out: ``missing_logp`` (sampled tokens), ``untrained_attempts``, ``empty_sequences``, ``lost_pairs``."""
    seed: int = 0
    step: int = 0
    update: int = 0

    def __len__(self) -> int:
        return len(self.offsets_B1) - 1

    @property
    def num_actions(self) -> int:
        return len(self.action_N)

    def lengths_B(self) -> NDArray[np.int64]:
        return np.diff(self.offsets_B1)

    def unit_B(self, scope: str) -> NDArray[np.int64]:
        """Smallest sets that a loss of ``scope`` must see whole: one number per sequence.

        token, sequence: each sequence; pair: both sides of each pair; group: each group; batch: everything.
        """
        if scope in ("token", "sequence"):
            return np.arange(len(self))
        if scope == "group":
            return self.group_B
        if scope == "batch":
            return np.zeros(len(self), dtype=np.int64)
        if scope != "pair":
            raise DataError(f"scope {scope!r} is unknown. Choose one of token, sequence, pair, group, batch")
        unit = list(range(len(self)))

        def first(row: int) -> int:
            while unit[row] != row:
                unit[row] = unit[unit[row]]
                row = unit[row]
            return row

        for chosen, rejected in self.pairs_P2.tolist():  # a sequence in several pairs ties them all together
            one, other = sorted((first(chosen), first(rejected)))
            unit[other] = one
        return np.array([first(row) for row in unit], dtype=np.int64)

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> TrainBatch:
        """These sequences, in this order, with every array cut along; weights and denominators stay those of the whole.

        Numbers of groups, attempts and calls stay as they are (arrays over calls stay whole). Pairs stay where both sides are
        selected.
        """
        rows = np.asarray(rows, dtype=np.int64)
        starts, stops = np.searchsorted(self.row_N, rows, "left"), np.searchsorted(self.row_N, rows, "right")
        take_N = ranges(starts, stops - starts)
        row_N = np.repeat(np.arange(len(rows)), stops - starts)
        lengths = self.lengths_B()[rows]
        take_T = ranges(self.offsets_B1[rows], lengths)
        offsets_B1 = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        place_B = np.full(len(self), -1, dtype=np.int64)
        place_B[rows] = np.arange(len(rows))
        pairs_P2 = place_B[self.pairs_P2].reshape(-1, 2)
        whole_P = (pairs_P2 >= 0).all(axis=1)
        take: dict[str, Any] = {"token": take_T, "action": take_N, "sequence": rows, "call": slice(None)}

        def cut_N(array: NDArray[Any] | None) -> Any:
            return None if array is None else array[take_N]

        return dataclasses.replace(
            self,
            tokens_T=self.tokens_T[take_T],
            offsets_B1=offsets_B1,
            action_N=self.action_N[take_N] - self.offsets_B1[self.row_N[take_N]] + offsets_B1[row_N],
            row_N=row_N,
            temperature_N=self.temperature_N[take_N],
            sampler_logp_N=self.sampler_logp_N[take_N],
            group_B=self.group_B[rows],
            attempt_B=self.attempt_B[rows],
            population_B=self.population_B[rows],
            attempt_key_B=self.attempt_key_B[rows],
            position_N=self.position_N[take_N],
            call_N=self.call_N[take_N],
            reward_B=self.reward_B[rows],
            pairs_P2=pairs_P2[whole_P],
            keep_N=self.keep_N[take_N],
            measured={name: cut_N(array) for name, array in self.measured.items()},
            advantage_N=cut_N(self.advantage_N),
            returns_N=cut_N(self.returns_N),
            extras={name: (array[take[axis]], axis) for name, (array, axis) in self.extras.items()},
            token_weight={name: cut_N(weight_N) for name, weight_N in self.token_weight.items()},
            sequence_weight={name: weight_B[rows] for name, weight_B in self.sequence_weight.items()},
            pair_weight={name: weight_P[whole_P] for name, weight_P in self.pair_weight.items()},
        )


@dataclass
class AdvantageBatch:
    """Scores of a lease, float64, over attempts; see :meth:`of` for doctests."""

    reward_A: NDArray[np.float64]
    """NaN where an attempt has no ``Ok`` score."""
    group_A: NDArray[np.int64]
    role_A: NDArray[np.str_]
    num_actions_A: NDArray[np.int64]
    reward_K: NDArray[np.float64]
    """Step rewards, NaN where none."""
    state_K: NDArray[np.str_]
    step_K: NDArray[np.int64]
    attempt_K: NDArray[np.int64]
    attempt_N: NDArray[np.int64]
    """Attempt of each action token, in the attempt's own order of calls."""
    call_N: NDArray[np.int64]
    tokens: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Per action token, only what was asked for: ``old_logp, ref_logp, value, entropy, token_reward`` …"""
    truncated_A: NDArray[np.bool_] | None = None
    """Whether each attempt ran out of tokens; ``None``: none did."""
    order_N: NDArray[np.int64] | None = None
    """Where each action token stands in the :class:`TrainBatch`; ``None``: the same order."""

    @property
    def baseline_A(self) -> NDArray[np.bool_]:
        """Attempts that enter baselines: role *sample*, an ``Ok`` score, at least one action token."""
        inside_A: NDArray[np.bool_] = (self.role_A == "sample") & np.isfinite(self.reward_A) & (self.num_actions_A > 0)
        return inside_A

    @classmethod
    def of(cls, rewards: Sequence[float] | Sequence[Sequence[float]], **arrays: Any) -> AdvantageBatch:
        """One group (or a list of groups) of one-token attempts: for doctests and tests.

        ``None`` is an attempt without a score. Any field can be given by name; other names become arrays per action token.

        >>> batch = AdvantageBatch.of([[1, 0], [None, 1, 0]])
        >>> batch.group_A.tolist(), batch.baseline_A.tolist()
        ([0, 0, 1, 1, 1], [True, True, False, True, True])
        """
        groups: Any = [rewards] if not len(rewards) or np.isscalar(rewards[0]) or rewards[0] is None else rewards
        flat = [np.nan if reward is None else float(reward) for group in groups for reward in group]
        num = np.asarray(arrays.pop("num_actions_A", np.ones(len(flat))), dtype=np.int64)
        count = np.arange(len(flat))
        values: dict[str, Any] = {
            "reward_A": np.asarray(flat, dtype=np.float64),
            "group_A": np.repeat(np.arange(len(groups)), [len(group) for group in groups]),
            "role_A": np.full(len(flat), "sample"),
            "num_actions_A": num,
            "reward_K": np.full(len(flat), np.nan),
            "state_K": np.full(len(flat), ""),
            "step_K": np.zeros(len(flat), dtype=np.int64),
            "attempt_K": count,
            "attempt_N": np.repeat(count, num),
            "call_N": np.repeat(count, num),
        }
        names = {f.name for f in dataclasses.fields(cls)}
        values.update({name: np.asarray(array) for name, array in arrays.items() if name in names})
        tokens = {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items() if name not in names}
        return cls(**values, tokens=tokens)

    def reward_N(self) -> NDArray[np.float64]:
        """Reward of each action token: the attempt's on the last action token of its last call (so never on a token that
        is not trained), plus ``token_reward`` and the KL ``penalty`` where there are any. A penalty is part of
        ``reward_A`` already (:func:`trinity_core.algo.credit.penalise`) and is not counted twice."""
        reward_N = np.zeros(len(self.attempt_N))
        terminal_A = np.nan_to_num(self.reward_A)
        if "penalty" in self.tokens:
            terminal_A = terminal_A - np.bincount(self.attempt_N, self.tokens["penalty"], len(self.reward_A))
        attempts, index = np.unique(self.attempt_N[::-1], return_index=True)
        reward_N[len(self.attempt_N) - 1 - index] = terminal_A[attempts]
        for name in ("token_reward", "penalty"):
            reward_N = reward_N + self.tokens.get(name, 0.0)
        return reward_N


@dataclass
class Credit:
    """What an advantage returns. ``advantage`` is per attempt, call or action token: its length says which ``per`` is."""

    advantage: NDArray[np.float64]
    per: str = "attempt"
    """*attempt, call, token*"""
    returns_N: NDArray[np.float64] | None = None
    keep_N: NDArray[np.bool_] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Term:
    """One part of a loss: unreduced values, the population they count over, their coefficient."""

    name: str
    values: torch.Tensor
    unit: str = "token"
    """*token, sequence, pair*"""
    over: str = "own"
    """Population; a policy term of a simple loss is over *all*."""
    coef: float = 1.0
    policy: bool = True
    """Whether corrections multiply it."""


@dataclass
class LossOutput:
    """Unreduced terms, and metrics over the same units: averaged where they count in the loss and are not NaN."""

    terms: list[Term]
    metrics: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def per_token(cls, values_N: torch.Tensor, **metrics: torch.Tensor) -> LossOutput:
        return cls([Term("policy", values_N, "token", "all")], metrics)

    @classmethod
    def per_sequence(cls, values_B: torch.Tensor, **metrics: torch.Tensor) -> LossOutput:
        return cls([Term("policy", values_B, "sequence", "all")], metrics)

    @classmethod
    def per_pair(cls, values_P: torch.Tensor, **metrics: torch.Tensor) -> LossOutput:
        return cls([Term("policy", values_P, "pair", "all")], metrics)
