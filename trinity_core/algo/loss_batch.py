"""What a loss sees: action tokens only, as tensors beside the log-probabilities they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from trinity_core.algo.batch import POPULATIONS
from trinity_core.algo.cut import uniform_N
from trinity_core.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trinity_core.algo.batch import TrainBatch


OWN_NAMES = frozenset({"logp", "entropy", "entropy_value", "value"})
"""Outputs of a forward that are no extras: they have properties of their own, or are for reports alone."""


@dataclass
class Tape:
    """Records what passes through ``batch.detach`` and plays it back: finite differences then see constants as constants."""

    recorded: list[Tensor] = field(default_factory=list)
    replay: bool = False
    position: int = 0

    def rewind(self) -> Tape:
        """The same constants again, in the same order."""
        return Tape(self.recorded, replay=True)

    def __call__(self, x: Tensor) -> Tensor:
        if not self.replay:
            self.recorded.append(x.detach().clone())
            return self.recorded[-1]
        self.position += 1
        return self.recorded[self.position - 1]


class LossBatch:
    """Action tokens of one micro-batch. Prompts, tool output and padding are not in it.

    ``logp_N`` has gradient; so have ``entropy_N``, ``value_N`` and the arrays of vocabulary functions where the backend
    computes them in this forward. All else is constant. Reading an array that ``needs`` did not name raises
    :class:`DataError`. Ask ``batch.detach(x)``, never ``x.detach()``, for a stop-gradient.
    """

    def __init__(
        self,
        batch: TrainBatch,
        outputs: Mapping[str, Tensor],
        needs: Iterable[str],
        *,
        old: str = "measured",
        detach: Callable[[Tensor], Tensor] = Tensor.detach,
        who: str = "the loss",
    ) -> None:
        self._batch, self._outputs, self._old, self._who = batch, outputs, old, who
        self._needs = frozenset(needs)
        self._cache: dict[str, Tensor] = {}
        self.detach: Callable[[Tensor], Tensor] = detach
        """``x`` without gradient, as a constant that the conformance kit can hold."""
        self._dropped_N = self._tensor(~batch.keep_N)
        self.seq_N: Tensor = self._tensor(batch.row_N)
        """Sequence of each action token, from 0 in this micro-batch."""
        self.pairs: Tensor = self._tensor(batch.pairs_P2)
        """(chosen, rejected) sequences, shape (P, 2)."""
        self.coef: Mapping[str, float] = batch.coef
        """Coefficients the kernel evaluated for this step."""

    # --- arrays ---

    @property
    def num_sequences(self) -> int:
        return len(self._batch)

    @property
    def logp_N(self) -> Tensor:
        """Log-probability of each action token now, with gradient."""
        if "logp" not in self._cache:
            logp_N = self._live("logp")
            # A dropped token has value 0 whatever is measured there: NaN must not come back through 0 * NaN in backward.
            self._cache["logp"] = torch.where(self._dropped_N & logp_N.isnan(), torch.zeros_like(logp_N), logp_N)
        return self._cache["logp"]

    @property
    def advantage_N(self) -> Tensor:
        """Credit of each action token. Raises where the algorithm has no advantage."""
        return self._constant(
            "advantage", self._batch.advantage_N, "advantage is null: choose one, e.g. advantage=grpo"
        )

    @property
    def returns_N(self) -> Tensor:
        """Target of the value, where the advantage gives one (needs ``returns``)."""
        self._asked("returns", "value")
        return self._constant("returns", self._batch.returns_N, "the advantage gives no returns")

    @property
    def old_logp_N(self) -> Tensor:
        """Log-probability under the policy at the start of the step (needs ``old_logp``)."""
        self._asked("old_logp")
        if "old" not in self._cache:
            if self._old == "forward":
                self._cache["old"] = self.detach(self.logp_N)
            elif self._old == "measured":
                self._cache["old"] = self._constant(
                    "old_logp", self._batch.measured.get("old_logp"), "old log-probabilities were not measured"
                )
            else:  # tokens that nobody sampled have none: theirs is the present one, ratio 1
                sampler_N = self._constant("sampler", self._batch.sampler_logp_N, "")
                self._cache["old"] = torch.where(sampler_N.isnan(), self.detach(self.logp_N), sampler_N)
        return self._cache["old"]

    @property
    def sampler_logp_N(self) -> Tensor:
        """Log-probability the engine recorded (needs ``sampler_logp``); NaN for *target* tokens."""
        self._asked("sampler_logp")
        return self._constant("sampler", self._batch.sampler_logp_N, "")

    @property
    def ref_logp_N(self) -> Tensor:
        """Log-probability under the reference (needs ``ref_logp``)."""
        self._asked("ref_logp")
        return self._constant("ref_logp", self._batch.measured.get("ref_logp"), "the reference was not measured")

    @property
    def teacher_logp_N(self) -> Tensor:
        """Log-probability under the teacher (needs ``teacher_logp``)."""
        self._asked("teacher_logp")
        return self._constant("teacher_logp", self._batch.measured.get("teacher_logp"), "the teacher was not measured")

    @property
    def entropy_N(self) -> Tensor:
        """Full-vocabulary entropy: with gradient for needs ``entropy_grad``, measured for ``entropy``."""
        self._asked("entropy", "entropy_grad")
        return self._live("entropy")

    @property
    def value_N(self) -> Tensor:
        """The critic's value before each action token, with gradient (needs ``value``)."""
        self._asked("value")
        return self._live("value")

    @property
    def old_value_N(self) -> Tensor:
        """The critic's value measured before the first update (needs ``value``)."""
        self._asked("value")
        return self._constant("value", self._batch.measured.get("value"), "the critic was not measured")

    @property
    def reward_B(self) -> Tensor:
        """Reward of each sequence's attempt; NaN where there is none."""
        return self._tensor(self._batch.reward_B)

    @property
    def uniform_N(self) -> Tensor:
        """One random number in [0, 1) per action token, the same wherever the token lies."""
        return self._tensor(uniform_N(self._batch))

    @property
    def keep_N(self) -> Tensor:
        """False at tokens fixed before the step not to count: their values are 0 whatever a loss returns, and a statistic over
        the batch leaves them out."""
        return ~self._dropped_N

    @property
    def ratio_N(self) -> Tensor:
        """``exp(logp − old)``, the difference clamped to ±20 inside (needs ``old_logp``)."""
        if "ratio" not in self._cache:
            self._cache["ratio"] = (self.logp_N - self.old_logp_N).clamp(-20.0, 20.0).exp()
        return self._cache["ratio"]

    @property
    def extra(self) -> Mapping[str, Tensor]:
        """Arrays by name: of vocabulary functions (with gradient), and of experiences (token and action axes: at the action
        tokens; sequence axis: per sequence)."""
        return _Extras(self)

    @property
    def populations(self) -> dict[str, Tensor]:
        """Boolean mask over action tokens of each population: *all, own, expert*."""
        member_N = self._batch.population_B[self._batch.row_N]
        return {
            name: self._tensor(member_N == index if index else np.ones_like(member_N, dtype=np.bool_))
            for index, name in enumerate(POPULATIONS)
        }

    # --- per sequence ---

    def seq_sum(self, x_N: Tensor) -> Tensor:
        """Sum over the action tokens of each sequence: N → B."""
        return x_N.new_zeros(self.num_sequences, *x_N.shape[1:]).index_add(0, self.seq_N, x_N)

    def seq_mean(self, x_N: Tensor) -> Tensor:
        """Mean over the action tokens of each sequence: N → B (0 for a sequence without)."""
        count_B = torch.bincount(self.seq_N, minlength=self.num_sequences).clamp(min=1).to(x_N.dtype)
        return self.seq_sum(x_N) / count_B

    def spread(self, x_B: Tensor) -> Tensor:
        """Each sequence's value at each of its action tokens: B → N."""
        return x_B[self.seq_N]

    # --- inside ---

    def _asked(self, *names: str) -> None:
        if not self._needs & set(names):
            raise DataError(
                f"{self._who} reads {names[0]}_N but its needs() does not name {names[0]!r}. Add it, so that it is computed"
            )

    def _constant(self, name: str, array: NDArray[Any] | None, why: str) -> Tensor:
        if name not in self._cache:
            if array is None:
                raise DataError(f"{self._who} reads {name}, which this batch does not hold: {why}")
            tensor = self._tensor(array)
            if tensor.is_floating_point() and name != "sampler":
                neutral_N = self.logp_N.detach() if name.endswith("logp") else torch.zeros_like(tensor)
                tensor = torch.where(self._dropped_N & tensor.isnan(), neutral_N, tensor)
            self._cache[name] = tensor
        return self._cache[name]

    def _live(self, name: str) -> Tensor:
        if name in self._outputs:
            return self._outputs[name]
        return self._constant(name, self._batch.measured.get(name), f"the backend's forward gave no {name}")

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        like = next(iter(self._outputs.values())) if "logp" not in self._outputs else self._outputs["logp"]
        tensor = torch.as_tensor(np.ascontiguousarray(array), device=like.device)
        return tensor.to(like.dtype) if tensor.is_floating_point() else tensor


class _Extras(Mapping[str, Tensor]):
    def __init__(self, batch: LossBatch) -> None:
        self._loss_batch = batch

    def __getitem__(self, name: str) -> Tensor:
        of, train = self._loss_batch, self._loss_batch._batch
        if name in of._outputs and name not in OWN_NAMES:
            return of._outputs[name]
        if name in train.extras:
            array, axis = train.extras[name]
            return of._tensor(array[train.action_N] if axis == "token" else array)
        if name in train.measured:
            return of._tensor(train.measured[name])
        raise DataError(
            f"{of._who} reads extra[{name!r}], which this batch does not hold. It holds: {', '.join(self) or 'none'}"
        )

    def __iter__(self) -> Any:
        known = set(self._loss_batch._outputs) - OWN_NAMES
        return iter(sorted(known | set(self._loss_batch._batch.extras)))

    def __len__(self) -> int:
        return len(list(iter(self)))
