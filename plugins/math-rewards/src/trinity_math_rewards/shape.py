"""A reward for how an answer looks: ``math_format``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trinity_core.errors import ConfigError
from trinity_core.protocols import Reward
from trinity_core.types import Attempt, Ok, Score

ONE_BOX = r"(?:(?!\\boxed).)*\\boxed\{(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})+\}(?:(?!\\boxed).)*"
"""Exactly one box, not empty, braces up to four deep. Linear: no two branches begin alike."""


@dataclass(frozen=True)
class MathFormat(Reward):
    r"""1 if the pattern matches the final text **as a whole**, else 0.

    Blanks and newlines around the text are dropped first, so no pattern has to ask for, or forbid, a final newline.
    ``.`` matches newlines. The default asks for exactly one ``\boxed{…}``.
    """

    pattern: str = ONE_BOX
    """A regular expression of Python's ``re``. Think and answer: ``<think>.*?</think>\\s*<answer>.*?</answer>``."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(
                f"math_format.pattern: {error} in {self.pattern!r}. See Python's re for the syntax"
            ) from error

    def __call__(self, attempt: Attempt) -> Score:
        return Ok(float(re.fullmatch(self.pattern, attempt.text.strip(), re.DOTALL) is not None))
