"""Autograd against finite differences of the same objective, with all that passed through ``batch.detach`` held."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from trinity_core.algo.loss_batch import Tape
from trinity_core.algo.objective import Objective
from trinity_core.testing.rules import require
from trinity_core.testing.world import World

ADVICE = "Something stops a gradient outside batch.detach: write batch.detach(x), never x.detach(), x.data or torch.no_grad()"
ALLOWED = 1e-6
"""Error of a gradient, relative to its norm."""
REACH = 1e-3
"""How far a point stands from the nearest kink."""
REACH_ON_POLICY = 1e-4
"""The same at ratio 1, which no draw can move: a clip range may be as narrow as 3e-4."""
DRAWS = 20
"""Random batches to look at before giving up."""
FOUR = (-2, -1, 1, 2)
UNEVEN = 1.0137
"""Steps are no round number, or they would miss a staircase of round steps."""


@dataclass(frozen=True)
class Comparison:
    """Gradients at one random batch, over every entry J of every differentiable output of the forward."""

    names: tuple[str, ...]
    autograd_J: NDArray[np.float64]
    central_J: NDArray[np.float64]
    left_J: NDArray[np.float64]
    right_J: NDArray[np.float64]
    noise: float
    """What rounding alone makes of a difference."""

    @property
    def norm(self) -> float:
        return float(max(np.linalg.norm(self.autograd_J), np.linalg.norm(self.central_J)))

    @property
    def flat(self) -> bool:
        """Neither has any gradient at this point."""
        return self.norm <= 10 * self.noise

    @property
    def kinked_J(self) -> NDArray[np.bool_]:
        """Where the one-sided differences disagree by more than a smooth function's do."""
        return np.abs(self.right_J - self.left_J) > ALLOWED / 10 * self.norm + 10 * self.noise

    def wrong(self, at_J: NDArray[np.bool_]) -> str | None:
        """What is wrong at these entries; ``None``: nothing."""
        away_J = np.where(at_J, np.abs(self.autograd_J - self.central_J), 0.0)
        return self._told(away_J, "finite differences", self.central_J)

    def wrong_side(self, at_J: NDArray[np.bool_]) -> str | None:
        """At a kink the gradient lies between the two one-sided ones; where it does not, what it is."""
        low_J, high_J = np.minimum(self.left_J, self.right_J), np.maximum(self.left_J, self.right_J)
        near_J = np.clip(self.autograd_J, low_J, high_J)
        return self._told(np.where(at_J, np.abs(self.autograd_J - near_J), 0.0), "the nearer side of a kink", near_J)

    def _told(self, away_J: NDArray[np.float64], by: str, wanted_J: NDArray[np.float64]) -> str | None:
        away = float(np.linalg.norm(away_J))
        if away <= ALLOWED * self.norm + self.noise * len(away_J) ** 0.5:
            return None
        worst = int(away_J.argmax())
        return (
            f"the gradient is {away / self.norm:.3g} of its norm off (allowed {ALLOWED:g}), most at "
            f"d loss / d {self.names[worst]}: {self.autograd_J[worst]:.8g} by autograd, {wanted_J[worst]:.8g} by {by}"
        )


def compare(objective: Objective, world: World, reach: float) -> Comparison:
    """Five values of the loss along each entry of each output, from ``-reach`` to ``reach``.

    Central differences of fourth order; one-sided ones of second order, whose difference is of third order in the step
    where the loss is smooth, and the jump of its slope (or more) where it has a kink in between.
    """
    leaves, tape = world.leaves(objective), Tape()
    share, _ = objective(world.batch, leaves, detach=tape)
    require(share.requires_grad, f"the loss has no gradient at all. {ADVICE}")
    found = torch.autograd.grad(share, list(leaves.values()), allow_unused=True)
    autograd = [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves.values(), found)]
    base, step = float(share.detach()), reach / 2 * UNEVEN
    names, values = [], []
    for name, leaf in leaves.items():
        for entry in range(leaf.numel()):
            names.append(f"{name}[{', '.join(str(int(i)) for i in np.unravel_index(entry, leaf.shape))}]")
            values.append([_moved(objective, world, leaves, tape, name, entry, by * step) for by in FOUR])
    at = np.array(values).reshape(-1, 4).T
    return Comparison(
        tuple(names),
        torch.cat([grad.reshape(-1) for grad in autograd]).numpy(),
        central_J=(8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * step),
        left_J=(3 * base - 4 * at[1] + at[0]) / (2 * step),
        right_J=(-3 * base + 4 * at[2] - at[3]) / (2 * step),
        noise=8 * float(np.finfo(np.float64).eps) * max(1.0, abs(base)) / step,
    )


def _moved(
    objective: Objective, world: World, leaves: dict[str, torch.Tensor], tape: Tape, name: str, entry: int, by: float
) -> float:
    moved = {key: leaf.detach().clone() for key, leaf in leaves.items()}
    moved[name].view(-1)[entry] += by
    return float(objective(world.batch, moved, detach=tape.rewind())[0])
