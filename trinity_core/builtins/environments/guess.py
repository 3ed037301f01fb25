"""A number guessing game: the smallest world with more than one turn."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from dataclasses import dataclass

from trinity_core.errors import DataError
from trinity_core.protocols import Environment, RunContext
from trinity_core.types import Step, Task


@dataclass(frozen=True)
class Guess(Environment):
    """Says *higher* or *lower* until the number in ``task.data["secret"]`` is named; that step's reward is 1.

    The first number in a reply is the guess. State: a hash of all that was said, so attempts at one task that asked the
    same are in the same state.
    """

    max_delay_s: float = 0.0
    """Each answer comes after a random time up to this, like that of a slow tool. Not seeded: no result may depend on it."""

    def open(self, run: RunContext) -> Game:
        return Game(self.max_delay_s)

    @classmethod
    def example_task(cls) -> Task:
        """For the conformance kit."""
        return Task("guess", ({"role": "user", "content": "Guess my number, 1 to 9."},), None, {"secret": 4})

    @classmethod
    def example_actions(cls) -> list[str]:
        """For the conformance kit."""
        return ["7", "is it 2?", "hm", "4"]


class Game(Environment):
    """One game, for one attempt."""

    def __init__(self, max_delay_s: float = 0.0) -> None:
        self._delay_s = max_delay_s
        self._secret: int | None = None
        self._said: list[str] = []

    async def reset(self, task: Task) -> Step:
        secret = task.data.get("secret")
        if not isinstance(secret, int):
            raise DataError(
                f"environment guess: task.data['secret'] must be a number, got {secret!r}. Use taskset=[guess]"
            )
        self._secret, self._said = secret, []
        await self._wait()
        return Step(state=self._state())

    async def step(self, action: str) -> Step:
        if self._secret is None:
            raise DataError("environment guess: step() before reset()")
        await self._wait()
        found = re.search(r"-?[0-9]{1,9}(?![0-9])", action)
        if found is None:
            answer = "That is no number."
        elif int(found.group()) == self._secret:
            return Step([{"role": "user", "content": "You have it."}], 1.0, done=True, state=self._state())
        else:
            answer = "higher" if int(found.group()) < self._secret else "lower"
        self._said.append(f"{found.group() if found else '?'} {answer}")
        return Step([{"role": "user", "content": answer}], 0.0, state=self._state())

    async def close(self) -> None:
        self._secret = None

    async def _wait(self) -> None:
        if self._delay_s > 0:
            await asyncio.sleep(random.uniform(0.0, self._delay_s))

    def _state(self) -> str:
        return hashlib.blake2b("\n".join(self._said).encode(), digest_size=8).hexdigest()
