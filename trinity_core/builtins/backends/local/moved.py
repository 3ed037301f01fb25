"""How many trained weights an optimizer step really changed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

BLOCK, STRIDE = 256, 16384
"""256 neighbours of every 16,384: as many numbers as every 64th, from a sixteenth of the memory, read in runs."""
SMALL = 1 << 16


class Moved:
    """Share of trained weights whose stored value a step changed, estimated.

    Of a tensor with more than 65,536 elements one in 64 is compared, of a smaller one each: about 2 million comparisons
    for a model of 135 million, a few thousandths of a second. Each sample counts for the elements it stands for.
    """

    def __init__(self, trained: Mapping[str, Tensor]) -> None:
        self._views = [sample(p.detach().view(-1)) for p in trained.values()]
        self._sizes = [p.numel() for p in trained.values()]
        self._before: list[Tensor] = []

    def before(self) -> None:
        """Remember the weights as they are."""
        self._before = [view.clone() for view in self._views]

    def share(self) -> float:
        """Share that differs from what :meth:`before` saw."""
        changed = [torch.count_nonzero(view != old) for view, old in zip(self._views, self._before)]
        self._before = []
        counts = zip(torch.stack(changed).tolist(), self._views, self._sizes)
        return sum(count / view.numel() * size for count, view, size in counts) / sum(self._sizes)


def sample(flat: Tensor) -> Tensor:
    """A view of what is compared of one tensor."""
    if len(flat) <= SMALL:
        return flat
    return flat[: len(flat) // STRIDE * STRIDE].view(-1, STRIDE)[:, :BLOCK]
