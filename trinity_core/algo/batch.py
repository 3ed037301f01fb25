"""What the trainer computes on. numpy up to :class:`LossBatch`, which is the first thing that holds tensors.

Shape suffixes: T tokens (flat over all sequences), N action tokens (flat), B sequences (experiences), A attempts, K calls,
P pairs, C chunk, V vocabulary. Arrays at action n describe the prediction *of* token n; the shift is done once, in
:func:`predictor_N`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

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
    parent_B: NDArray[np.int64]
    """Prefix forest: the sequence whose first ``prefix_len_B`` tokens are also this one's; -1 for none. A parent stands
    before its children."""
    prefix_len_B: NDArray[np.int64]
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
        """Smallest sets that a loss of ``scope`` must see whole: one number per sequence."""
        raise NotImplementedError

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> TrainBatch:
        """These sequences, in this order, with every array cut along; weights and denominators stay those of the whole."""
        raise NotImplementedError


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

    @property
    def baseline_A(self) -> NDArray[np.bool_]:
        """Attempts that enter baselines: role *sample*, an ``Ok`` score, at least one action token."""
        return (self.role_A == "sample") & np.isfinite(self.reward_A) & (self.num_actions_A > 0)

    @classmethod
    def of(cls, rewards: Sequence[float] | Sequence[Sequence[float]], **arrays: Any) -> AdvantageBatch:
        """One group (or a list of groups) of one-token attempts: for doctests and tests."""
        raise NotImplementedError


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
    """Unreduced terms, and metrics over the same units (tensors: averaged over action tokens)."""

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
