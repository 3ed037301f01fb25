"""How many trained weights an optimizer step really changed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

BLOCK, STRIDE = 256, 65536
"""256 neighbours of every 65,536: one number in 256, read in runs."""
SMALL = 1 << 16


class Moved:
    """Share of trained weights whose stored value a step changed, estimated.

    Of a tensor with more than 65,536 elements one in 256 is compared, of a smaller one each: about half a million comparisons
    for a model of 135 million, a few thousandths of a second. Each sample counts for the elements it stands for.
    """

    def __init__(self, trained: Mapping[str, Tensor]) -> None:
        # Two kinds, each compared in one go: a call for every tensor costs more than reading them.
        large = [p.detach().view(-1) for p in trained.values() if p.numel() > SMALL]
        small = [p.detach().view(-1) for p in trained.values() if p.numel() <= SMALL]
        self._kinds = [([sample(flat) for flat in kind], sum(map(len, kind))) for kind in (large, small) if kind]
        self._before: list[Tensor] = []

    def before(self) -> None:
        """Remember the weights as they are."""
        self._before = [joined(views) for views, _ in self._kinds]

    def share(self) -> float:
        """Share that differs from what :meth:`before` saw."""
        changed = 0.0
        for (views, size), old in zip(self._kinds, self._before):
            changed += int(torch.count_nonzero(joined(views) != old)) / len(old) * size
        self._before = []
        return changed / sum(size for _, size in self._kinds)


def joined(views: list[Tensor]) -> Tensor:
    return torch.cat([view.reshape(-1) for view in views])


def sample(flat: Tensor) -> Tensor:
    """A view of what is compared of one tensor."""
    if len(flat) <= SMALL:
        return flat
    return flat[: len(flat) // STRIDE * STRIDE].view(-1, STRIDE)[:, :BLOCK]
