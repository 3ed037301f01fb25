"""A soft penalty for long answers."""

from __future__ import annotations

from dataclasses import dataclass

from trinity_core.errors import ConfigError
from trinity_core.protocols import Reward
from trinity_core.types import Attempt, Ok, Score


@dataclass(frozen=True)
class Overlong(Reward):
    """Soft penalty for length (DAPO, arXiv:2503.14476, eq. 13).

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
