"""Builders that the tests share."""

from __future__ import annotations

from typing import Any

from trinity_core.types import Attempt, Task


def attempt_of(text: str, gold: str | None = None, **data: Any) -> Attempt:
    return Attempt(text=text, task=Task("t", (), gold, data))
