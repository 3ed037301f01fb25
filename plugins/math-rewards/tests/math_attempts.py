"""Builders that the tests share."""

from __future__ import annotations

from typing import Any

import numpy as np

from trinity_core.types import Attempt, Experience, Origin, Task


def attempt_of(text: str, gold: str | None = None, **data: Any) -> Attempt:
    return Attempt(text=text, task=Task("t", (), gold, data))


def attempt_with(actions: int, context: int = 5) -> Attempt:
    origin_T = np.array([Origin.CONTEXT] * context + [Origin.SAMPLED] * actions, np.uint8)
    size = len(origin_T)
    return Attempt(experiences=[Experience(np.zeros(size, np.int32), origin_T, np.zeros(size, np.float32))])
