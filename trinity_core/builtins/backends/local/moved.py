"""How many trained weights an optimizer step really changed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

BLOCK, STRIDE = 128, 65536
"""128 neighbours of every 65,536: one number in 512, read in runs. The same at every step: a resumed run must tell the same share."""
SMALL = 1 << 16


class Moved:
    """Share of trained weights whose stored value a step changed, estimated.

    Of a tensor with more than 65,536 elements one in 512 is compared, of a smaller one each: about 300,000 comparisons for a
    model of 135 million, in a thousandth of a second or two. Each sample counts for the elements it stands for.
    """

    def __init__(self, trained: Mapping[str, Tensor]) -> None:
        # Few kinds, each compared in one go: a call for every tensor costs more than reading them.
        kinds: dict[tuple[bool, torch.dtype, torch.device], list[Tensor]] = {}
        self._flats = [parameter.detach().view(-1) for parameter in trained.values()]
        self._writes = -1
        """Writes to the weights when they were last looked at. The optimizer's own fused step counts as none."""
        for flat in self._flats:
            kinds.setdefault((len(flat) > SMALL, flat.dtype, flat.device), []).append(flat)
        self._kinds = [Kind(flats) for flats in kinds.values()]

    def before(self) -> None:
        """Remember the weights as they are: what the last :meth:`share` saw, unless somebody has written since."""
        if self._count() != self._writes:
            for kind in self._kinds:
                torch._foreach_copy_(kind.old, kind.views)

    def share(self) -> float:
        """Share that differs from what :meth:`before` saw."""
        changed = 0.0
        for kind in self._kinds:
            torch._foreach_copy_(kind.new, kind.views)
            changed += int(torch.count_nonzero(kind.flat_new != kind.flat_old)) / len(kind.flat_old) * kind.size
            kind.swap()
        self._writes = self._count()
        return changed / sum(kind.size for kind in self._kinds)

    def _count(self) -> int:
        return sum(flat._version for flat in self._flats)


class Kind:
    """Tensors of one dtype on one device that are sampled alike: views of what is compared of each, and room for two copies of it."""

    def __init__(self, flats: list[Tensor]) -> None:
        self.size = sum(map(len, flats))
        self.views = [sample(flat) for flat in flats]
        counts = [view.numel() for view in self.views]
        self.flat_old, self.flat_new = flats[0].new_empty(sum(counts)), flats[0].new_empty(sum(counts))
        self.old, self.new = (
            [part.view(view.shape) for part, view in zip(flat.split(counts), self.views)]
            for flat in (self.flat_old, self.flat_new)
        )

    def swap(self) -> None:
        """What is new now is old for the next comparison."""
        self.old, self.new = self.new, self.old
        self.flat_old, self.flat_new = self.flat_new, self.flat_old


def sample(flat: Tensor) -> Tensor:
    """A view of what is compared of one tensor."""
    if len(flat) <= SMALL:
        return flat
    return flat[: len(flat) // STRIDE * STRIDE].view(-1, STRIDE)[:, :BLOCK]
