"""One random update twice: as the kernel's ragged batch, and as the padded matrices that other libraries read."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import torch

from trinity_core.algo.assemble import assemble
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.testing.world import play

torch.set_num_threads(1)
HORIZON = 40
"""``sampling.max_attempt_tokens``: what ``seq_mean_token_sum_norm`` divides by."""
FIGURES: dict[str, float] = {}
"""What was compared -> the largest relative difference found."""


@dataclass
class Padded:
    """(B, T) matrices in float64; garbage outside the mask."""

    mask: torch.Tensor
    logp: torch.Tensor
    """A leaf."""
    old: torch.Tensor
    ref: torch.Tensor
    sampler: torch.Tensor
    advantage: torch.Tensor


class Update:
    """Four groups of two to five attempts, some in two turns with a token of context between; advantages per attempt."""

    def __init__(
        self,
        seed: int,
        *,
        spread: float = 0.4,
        sampler_spread: float = 0.0,
        num_groups: int = 4,
        pairs: bool = False,
        pair_tokens: int = 11,
    ) -> None:
        rng = np.random.default_rng(seed)
        groups = []
        for number in range(num_groups):
            lengths = [rng.integers(1, 9, rng.integers(1, 3)).tolist() for _ in range(rng.integers(2, 6))]
            groups.append(play(rng, lengths, name=f"{number}"))
        for number in range(6 if pairs else 0):
            sides = [[int(n)] for n in rng.integers(1, pair_tokens + 1, 2)]
            groups.append(play(rng, sides, name=f"p{number}", roles=["chosen", "rejected"], pairs=[(0, 1)]))
        self.batch = assemble(groups, seed=seed, step=0)
        size = self.batch.num_actions
        self.logp = -rng.exponential(1.5, size)
        for name in ("old_logp", "ref_logp"):
            self.batch.measured[name] = self.logp + rng.normal(size=size) * spread
        given_N = np.isnan(self.batch.sampler_logp_N)
        sampler_N = self.batch.measured["old_logp"] + rng.normal(size=size) * sampler_spread
        self.batch.sampler_logp_N = np.where(given_N, np.nan, sampler_N)
        self.advantage_B = rng.normal(size=len(self.batch))
        self.batch.advantage_N = self.advantage_B[self.batch.row_N]
        self.column_N = self.batch.action_N - self.batch.offsets_B1[self.batch.row_N]
        first_B = self.column_N[np.searchsorted(self.batch.row_N, np.arange(len(self.batch)))]
        self.column_N = self.column_N - first_B[self.batch.row_N]
        self._rng = rng

    def padded(self) -> Padded:
        batch = self.batch
        shape = len(batch), int(self.column_N.max()) + 2
        mask = np.zeros(shape)
        mask[batch.row_N, self.column_N] = 1
        found = {}
        for name, array in (
            ("logp", self.logp),
            ("old", batch.measured["old_logp"]),
            ("ref", batch.measured["ref_logp"]),
            ("sampler", batch.sampler_logp_N),
            ("advantage", batch.advantage_N),
        ):
            matrix = self._rng.normal(size=shape) - 2.0
            matrix[batch.row_N, self.column_N] = array
            found[name] = torch.tensor(matrix)
        found["logp"].requires_grad_()
        return Padded(torch.tensor(mask), **found)

    def at_actions(self, matrix: torch.Tensor) -> np.ndarray:
        return matrix.detach().numpy()[self.batch.row_N, self.column_N]

    def ours(self, loss, reduction: str | None = None, corrections=(), **objective) -> tuple[float, np.ndarray]:
        """Value and gradient by log-probability, a sequence being one experience as it is elsewhere."""
        set_weights(self.batch, reduction or loss.reduction, by="experience", max_attempt_tokens=HORIZON)
        leaf = torch.tensor(self.logp, requires_grad=True)
        share, _ = Objective.of(loss, corrections, **objective)(self.batch, {"logp": leaf})
        (found,) = torch.autograd.grad(share, [leaf])
        return float(share.detach()), found.numpy()

    def theirs(self, padded: Padded, value: torch.Tensor) -> tuple[float, np.ndarray]:
        (found,) = torch.autograd.grad(value, [padded.logp])
        assert (found[padded.mask == 0] == 0).all(), "a masked position has a gradient"
        return float(value.detach()), self.at_actions(found)


def away(one, other) -> float:
    """Largest difference, relative to the largest number."""
    one, other = np.asarray(one, float), np.asarray(other, float)
    assert one.shape == other.shape
    return float(np.abs(one - other).max() / max(np.abs(one).max(), 1e-300))


def agree(what: str, ours, theirs, tolerance: float = 1e-12) -> None:
    """Value and gradient (or any arrays) are the same, and how nearly is written down."""
    found = _note(what, ours, theirs)
    assert found <= tolerance, f"{what}: {found:.3g} apart"


def differ(what: str, ours, theirs) -> None:
    """A known difference, and how large it is here."""
    found = _note(f"{what} (known difference)", ours, theirs)
    assert found > 1e-6, f"{what} no longer differs: take it off the list"


def _note(what: str, ours, theirs) -> float:
    library = sys._getframe(2).f_globals["__name__"].removeprefix("test_")
    found = max(away(a, b) for a, b in zip(ours, theirs, strict=True))
    FIGURES[f"{library}: {what}"] = max(FIGURES.get(f"{library}: {what}", 0.0), found)
    return found
