"""What a workflow holds: the policy, as a conversation."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_core.errors import DataError, RunError
from trinity_core.protocols import Environment
from trinity_core.rollout.recorder import Recorder
from trinity_core.rollout.renderer import Renderer
from trinity_core.rollout.seeds import seed_of, stable_hash
from trinity_core.rollout.turns import Turns
from trinity_core.types import Completion, Finish, Key, Message, Request, Sampling


class AttemptEnded(Exception):
    """The attempt's tokens are spent and the workflow asked again. The kernel ends the attempt and scores it."""


class TooManyCalls(RunError):
    """The attempt made more than ``explorer.max_calls`` calls: it faults."""


@dataclass(frozen=True)
class Reply:
    """What the policy answered."""

    text: str
    """The words, without special tokens."""
    message: Message
    """The assistant's message: append it to the conversation as it is, so that the next call extends this one."""
    tokens: NDArray[np.int32]
    """The sampled tokens. Empty: the attempt had no token left."""
    finish: Finish
    """*length*: the reply was cut at its limit."""


@dataclass
class Chat:
    """One attempt's line to the policy.

    ``reply = await chat(messages)`` renders, samples and records. Limits are kept here: a call gets at most the tokens
    that are left of ``max_attempt_tokens``; with none left the reply is empty (``finish="length"``), and a workflow that
    asks once more is ended and scored as it stands. ``max_calls`` calls are allowed; one more faults the attempt.
    """

    key: Key
    """Names the attempt; ``call`` is filled in."""
    submit: Callable[[Request], Awaitable[Completion]]
    """Hands one request to the engine."""
    renderer: Renderer
    sampling: Sampling
    """How calls are drawn unless one says otherwise."""
    max_attempt_tokens: int
    """Action tokens of the attempt, over all its calls."""
    max_calls: int = 64
    run_seed: int = 0
    models: Mapping[str, Any] = field(default_factory=dict)
    """Auxiliary models by role: ``chat.models["judge"]``."""
    environment: Environment | None = None
    """This attempt's own live world, where the run has an ``environment``; the kernel closes it."""
    on_tokens: Callable[[int], None] | None = None
    """Told the number of tokens after each call."""
    recorder: Recorder = field(default_factory=Recorder)
    messages: list[Message] = field(default_factory=list)
    """The conversation so far: the last call's messages and its reply."""
    text: str = ""
    """The last reply."""

    def __post_init__(self) -> None:
        self._turns = Turns(self.renderer)
        self._next_state: str | None = None
        self._num_calls = 0
        self._exhausted = False
        self._promised = 0
        """Tokens of calls that have not come back."""

    @cached_property
    def rng(self) -> np.random.Generator:
        """A generator of this attempt: the same numbers in every run of one seed."""
        return np.random.default_rng(stable_hash("rng", self.run_seed, *dataclasses.astuple(self.key)))

    @property
    def num_calls(self) -> int:
        return self._num_calls

    @property
    def tokens_left(self) -> int:
        """Action tokens that the attempt may still sample."""
        return max(0, self.max_attempt_tokens - self.recorder.num_sampled - self._promised)

    async def __call__(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        sampling: Sampling | Mapping[str, Any] | None = None,
    ) -> Reply:
        """Sample the assistant's next message. ``sampling`` replaces the run's, whole or by field."""
        conversation = [dict(message) for message in messages]
        prompt, rendered = self._turns.prompt(conversation, tools)
        completion = await self._generate(prompt, sampling)
        if completion is None:
            return self._nothing_left(conversation)
        tokens = [int(token) for token in completion.tokens_N]
        self.text = self.renderer.text(tokens)
        message: Message = {"role": "assistant", "content": self.text}
        self.messages = [*conversation, message]
        self._turns.add(conversation, rendered, [*prompt, *tokens], message, tools)
        return Reply(self.text, dict(message), completion.tokens_N, completion.finish)

    async def complete(self, tokens: Sequence[int], sampling: Sampling | Mapping[str, Any] | None = None) -> Reply:
        """Sample behind raw tokens, without the template."""
        completion = await self._generate([int(token) for token in tokens], sampling)
        if completion is None:
            return self._nothing_left([])
        self.text = self.renderer.text([int(token) for token in completion.tokens_N])
        message: Message = {"role": "assistant", "content": self.text}
        self.messages = [*self.messages, message]
        return Reply(self.text, dict(message), completion.tokens_N, completion.finish)

    def mark(self, *, state: str | None = None, reward: float | None = None) -> None:
        """``state`` (a hash of the state it is taken in) belongs to the *next* call, ``reward`` to the *last* one."""
        if state is not None:
            self._next_state = str(state)
        if reward is not None:
            if not self.recorder.calls:
                raise DataError("chat.mark(reward=…) belongs to the last call, and there was none yet")
            if not np.isfinite(reward):
                raise DataError(f"chat.mark(reward={reward!r}): a reward is a finite number")
            self.recorder.calls[-1].reward = float(reward)

    async def _generate(self, prompt: list[int], sampling: Sampling | Mapping[str, Any] | None) -> Completion | None:
        if not prompt:
            raise DataError("a call needs at least one prompt token: nothing predicts the first token of a sequence")
        if self._num_calls >= self.max_calls:
            raise TooManyCalls(f"the attempt made more than explorer.max_calls={self.max_calls} calls")
        if self.tokens_left == 0:
            if self._exhausted:
                raise AttemptEnded(f"sampling.max_attempt_tokens={self.max_attempt_tokens} are spent")
            self._exhausted = True
            return None
        chosen = self.sampling
        if isinstance(sampling, Sampling):
            chosen = sampling
        elif sampling is not None:
            chosen = dataclasses.replace(self.sampling, **sampling)
        if chosen.max_tokens > self.tokens_left:
            chosen = dataclasses.replace(chosen, max_tokens=self.tokens_left)
        self._promised += chosen.max_tokens  # calls at the same time share what is left
        key = self.key if self.key.call == self._num_calls else dataclasses.replace(self.key, call=self._num_calls)
        self._num_calls += 1
        state, self._next_state = self._next_state, None
        request = Request(key, np.asarray(prompt, dtype=np.int32), chosen, seed_of(self.run_seed, key))
        try:
            completion = await self.submit(request)
        finally:
            self._promised -= chosen.max_tokens
        if len(completion.tokens_N) > chosen.max_tokens:
            raise DataError(
                f"the engine returned {len(completion.tokens_N)} tokens where {chosen.max_tokens} were asked for"
            )
        self.recorder.record(prompt, completion, chosen, state=state)
        if self.on_tokens is not None:
            self.on_tokens(len(completion.tokens_N))
        return completion

    def _nothing_left(self, conversation: list[Message]) -> Reply:
        message: Message = {"role": "assistant", "content": ""}
        if conversation:
            self.messages = conversation
        return Reply("", message, np.empty(0, np.int32), "length")
