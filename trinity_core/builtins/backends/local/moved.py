"""How many trained weights an optimizer step really changed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

STRIDE = 65536
MANY, FEW = 256, 64
"""Neighbours that are compared of every 65,536: one number in 256, or in 1,024, read in runs."""
SMALL = 1 << 16
PLENTY = 0.01
"""Share from which the next step is looked at less closely: none of 130,000 numbers moving after a hundredth of all did is no
accident."""


class Moved:
    """Share of trained weights whose stored value a step changed, estimated.

    Of a tensor with more than 65,536 elements one in 1,024 is compared, and one in 256 while little moves (half a million
    comparisons for a model of 135 million, some two thousandths of a second); of a smaller one each. A sample counts for the
    elements it stands for.
    """

    def __init__(self, trained: Mapping[str, Tensor]) -> None:
        # Few kinds, each compared in one go: a call for every tensor costs more than reading them.
        kinds: dict[tuple[bool, torch.dtype, torch.device], list[Tensor]] = {}
        for parameter in trained.values():
            flat = parameter.detach().view(-1)
            kinds.setdefault((len(flat) > SMALL, flat.dtype, flat.device), []).append(flat)
        self._closely, self._roughly = ([Kind(flats, block) for flats in kinds.values()] for block in (MANY, FEW))
        self._kinds = self._closely

    def before(self) -> None:
        """Remember the weights as they are."""
        for kind in self._kinds:
            torch._foreach_copy_(kind.old, kind.views)

    def share(self) -> float:
        """Share that differs from what :meth:`before` saw."""
        changed = 0.0
        for kind in self._kinds:
            torch._foreach_copy_(kind.new, kind.views)
            changed += int(torch.count_nonzero(kind.flat_new != kind.flat_old)) / len(kind.flat_old) * kind.size
        share = changed / sum(kind.size for kind in self._kinds)
        self._kinds = self._roughly if share >= PLENTY else self._closely
        return share


class Kind:
    """Tensors of one dtype on one device that are sampled alike: views of what is compared of each, and room for two copies of it."""

    def __init__(self, flats: list[Tensor], block: int) -> None:
        self.size = sum(map(len, flats))
        self.views = [sample(flat, block) for flat in flats]
        counts = [view.numel() for view in self.views]
        self.flat_old, self.flat_new = flats[0].new_empty(sum(counts)), flats[0].new_empty(sum(counts))
        self.old, self.new = (
            [part.view(view.shape) for part, view in zip(flat.split(counts), self.views)]
            for flat in (self.flat_old, self.flat_new)
        )


def sample(flat: Tensor, block: int) -> Tensor:
    """A view of what is compared of one tensor."""
    if len(flat) <= SMALL:
        return flat
    return flat[: len(flat) // STRIDE * STRIDE].view(-1, STRIDE)[:, :block]
