"""Values that change with the step. The kernel evaluates them; no component counts steps."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

from trinity_core.config.schema import Schedule

T = TypeVar("T")


def evaluate(value: float | Schedule, step: int) -> float:
    """``value`` at ``step`` (from 0). Linear: ``start + (end - start) * step / steps``; cosine: the same ends along half a
    cosine; after ``steps`` it stays at ``end``.

    >>> [evaluate(Schedule(1.0, 0.0, steps=4), step) for step in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """
    if not isinstance(value, Schedule):
        return float(value)
    done = min(max(step, 0) / value.steps, 1.0)
    if value.shape == "cosine":
        done = 0.5 * (1.0 - math.cos(math.pi * done))
    return value.start + (value.end - value.start) * done


def at_step(component: T, step: int) -> T:
    """``component`` with every :class:`Schedule` among its fields, nested ones too, replaced by its value at ``step``."""
    if not dataclasses.is_dataclass(component) or isinstance(component, type):
        return component
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(component):
        old = getattr(component, field.name)
        new: Any = evaluate(old, step) if isinstance(old, Schedule) else at_step(old, step)
        if new is not old and field.init:
            changed[field.name] = new
    return dataclasses.replace(component, **changed) if changed else component
