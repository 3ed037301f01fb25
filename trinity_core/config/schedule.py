"""Values that change with the step. The kernel evaluates them; no component counts steps."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

from trinity_core.config.schema import PeakSchedule, Schedule

T = TypeVar("T")


def evaluate(value: float | Schedule | PeakSchedule, step: int) -> float:
    """``value`` at ``step`` (from 0). Linear: ``start + (end - start) * step / steps``; cosine: the same ends along half a
    cosine; after ``steps`` it stays at ``end``. A peak: ``peak * step / warmup``, then
    ``valley + (peak - valley) * (1 + cos(pi (step - warmup) / decay)) / 2``, then ``valley``.

    >>> [evaluate(Schedule(1.0, 0.0, steps=4), step) for step in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    >>> [evaluate(PeakSchedule(0.9, 0.1, warmup=2, decay=4), step) for step in (0, 1, 2, 4, 6, 9)]
    [0.0, 0.45, 0.9, 0.5, 0.1, 0.1]
    """
    if isinstance(value, PeakSchedule):
        step = max(step, 0)
        if step < value.warmup:
            return value.peak * step / value.warmup
        since = step - value.warmup
        if since >= value.decay:
            return value.valley
        return value.valley + (value.peak - value.valley) * 0.5 * (1.0 + math.cos(math.pi * since / value.decay))
    if not isinstance(value, Schedule):
        return float(value)
    done = min(max(step, 0) / value.steps, 1.0)
    if value.shape == "cosine":
        done = 0.5 * (1.0 - math.cos(math.pi * done))
    return value.start + (value.end - value.start) * done


def at_step(component: T, step: int) -> T:
    """``component`` with every schedule among its fields, nested ones too, replaced by its value at ``step``."""
    if not dataclasses.is_dataclass(component) or isinstance(component, type):
        return component
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(component):
        old = getattr(component, field.name)
        new: Any = evaluate(old, step) if isinstance(old, Schedule | PeakSchedule) else at_step(old, step)
        if new is not old and field.init:
            changed[field.name] = new
    return dataclasses.replace(component, **changed) if changed else component
