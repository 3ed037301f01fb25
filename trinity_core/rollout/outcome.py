"""What a scorer may return, and how it crosses a pipe. Light: reward processes import it."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from trinity_core.types import Fault, Invalid, Ok, Score


def as_score(value: object, where: str) -> Score:
    """``value`` as a score. A finite number is ``Ok``; anything that is none is a fault of the scorer, never 0."""
    if isinstance(value, Ok | Invalid | Fault):
        return value
    if value is None:
        return Fault(
            f"{where} returned nothing: return a number, or Invalid(reason) if there is no score", retryable=False
        )
    if isinstance(value, Real) or type(value).__name__ in ("bool", "bool_"):
        try:
            number = float(value)  # type: ignore[arg-type]
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return Ok(number)
        return Fault(f"{where} returned {number}: a score is a finite number", retryable=False)
    return Fault(
        f"{where} returned a {type(value).__name__}: a score is a number, Ok, Invalid or Fault", retryable=False
    )


def as_scores(values: object, count: int, where: str) -> list[Score]:
    """One score for each of ``count`` attempts, in their order. Another length would shift scores: all are faults."""
    if not isinstance(values, Sequence) and not hasattr(values, "__len__"):
        return [Fault(f"{where} returned a {type(values).__name__}, not a list of scores", retryable=False)] * count
    items = list(values)  # type: ignore[call-overload]
    if len(items) != count:
        return [Fault(f"{where} returned {len(items)} scores for {count} attempts", retryable=False)] * count
    return [as_score(value, where) for value in items]


def broke(error: BaseException, where: str, *, retryable: bool = False) -> Fault:
    """The fault of a scorer that raised."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Fault(f"{where} raised {said}{place_of(error)}", retryable=retryable)


class InWorker(Exception):
    """What was raised in another process; its text is the traceback there."""


def place_of(error: BaseException) -> str:
    """`` (broken.py:7)``: the last line of the user's own that the error passed; empty where it passed none.

    Frames of this package are left out, and those of installed libraries where a frame of the user's is there.
    """
    own = str(Path(__file__).parents[1]) + os.sep
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    libraries = (str(Path(os.__file__).parent) + os.sep, "site-packages" + os.sep, "<")
    users = [frame for frame in frames if not any(word in frame.filename for word in libraries)]
    for frame in reversed(users or frames):
        if not frame.filename.startswith("<"):
            return f" ({Path(frame.filename).name}:{frame.lineno})"
    return ""


def traceback_of(error: BaseException) -> str:
    """The traceback as text, as it crosses a pipe."""
    return "".join(traceback.format_exception(error))


def to_wire(score: Score) -> list[Any]:
    """A score as plain data."""
    if isinstance(score, Ok):
        return ["ok", float(score.value), {str(k): float(v) for k, v in score.parts.items()}]
    if isinstance(score, Invalid):
        return ["invalid", str(score.reason)]
    return ["fault", str(score.reason), bool(score.retryable)]


def from_wire(data: list[Any]) -> Score:
    """The score that :func:`to_wire` wrote."""
    match data:
        case ["ok", float(value), dict(parts)]:
            return Ok(value, parts)
        case ["invalid", str(reason)]:
            return Invalid(reason)
        case ["fault", str(reason), bool(retryable)]:
            return Fault(reason, retryable)
    return Fault(f"the reward's process sent {data!r}, which is no score", retryable=False)
