r"""Rewards for how an answer looks: ``math_format`` and ``overlong``."""

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


@dataclass(frozen=True)
class Overlong(Reward):
    r"""Soft penalty for length (DAPO, arXiv:2503.14476, eq. 13).

    With y the attempt's action tokens, M ``max_tokens`` and C ``buffer``:

        0                    if y ≤ M − C
        ((M − C) − y) / C    if M − C < y ≤ M
        −1                   if y > M

    Only tokens that the policy wrote count: prompts, tool output and template do not.
    """

    max_tokens: int = 1024
    """M: action tokens of one attempt; as a rule what ``sampling.max_attempt_tokens`` allows."""
    buffer: int = 256
    """C: tokens before the end over which the penalty grows."""

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= self.max_tokens:
            raise ConfigError(
                f"overlong.buffer: {self.buffer} tokens do not fit in max_tokens={self.max_tokens}. Choose 1 … max_tokens"
            )

    def __call__(self, attempt: Attempt) -> Score:
        free = self.max_tokens - self.buffer
        length = attempt.num_actions
        penalty = 0.0 if length <= free else max(-1.0, (free - length) / self.buffer)
        return Ok(penalty, {"tokens": float(length)})
