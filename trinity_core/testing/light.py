"""A loss that loads without torch: rewards, tasksets and worlds are checked where torch is not installed."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from trinity_core.protocols import Loss

COMPUTING = ("loss", "correction", "backend", "engine")
"""Kinds whose components may need torch themselves."""


@dataclass(frozen=True)
class Unused(Loss):
    """Stands in the config of a run that is checked and never started."""

    def __call__(self, batch: Any) -> Any:
        raise NotImplementedError("this loss is for checking configs; it computes nothing")


def words(kind: str) -> tuple[str, ...]:
    """What to add to a run that selects a component of ``kind``, so that it can be checked on this installation."""
    if kind in COMPUTING or importlib.util.find_spec("torch") is not None:
        return ()
    return (f"loss={__name__}:Unused",)
