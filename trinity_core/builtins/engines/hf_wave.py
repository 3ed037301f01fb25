"""One wave: several requests as one batch, from prompts to completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from trinity_core.builtins.engines.hf_sample import draw
from trinity_core.protocols import Tokenizer
from trinity_core.rollout.seeds import uniforms
from trinity_core.types import Completion, Finish, Key, Request


@dataclass
class Reply:
    """What one request has got so far."""

    request: Request
    limit: int
    """Most tokens it may get: ``max_tokens``, or what the context leaves."""
    place: int = 0
    """Of the request in its wave."""
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    finish: Finish | None = None
    wide: bool = False
    """Log-probabilities stay float64: the model computes in it."""

    def completion(self) -> Completion:
        logp_N = np.asarray(self.logp, np.float64 if self.wide else np.float32)
        return Completion(np.asarray(self.tokens, np.int32), logp_N, self.finish or "aborted", self.versions)  # type: ignore[arg-type]


class Batch(Protocol):
    """Rows in flight, and the logits of what comes next."""

    live: list[Reply]
    """The reply of each row."""
    logits_RV: Tensor
    token_R: Tensor
    """The token just drawn for each row: input of the next step."""

    def step(self) -> None:
        """One more token of every row that runs; others may leave."""


Start = Callable[[list[Reply]], Batch]
"""Computes the prompts of these replies."""


class Wave:
    """Requests that are played together."""

    def __init__(
        self,
        requests: Sequence[Request],
        tokenizer: Tokenizer,
        context: int | None,
        told: Callable[[list[int]], object] = lambda _: None,
    ) -> None:
        """``told`` hears, on the thread that plays, which requests have just got their last token."""
        self.tokenizer, self._told = tokenizer, told
        self.replies = []
        for request in requests:
            room = (
                request.sampling.max_tokens
                if context is None
                else min(request.sampling.max_tokens, context - len(request.tokens_T))
            )
            reply = Reply(request, room, len(self.replies))
            if room < 1:
                reply.finish = "length"  # the prompt fills the context: there is no place for a token
            self.replies.append(reply)
        self._aborted: set[Key] = set()
        self._abort_all = False

    def abort(self, keys: frozenset[Key] | None = None) -> None:
        """Stop these requests (all by default) before their next token. Safe from any thread."""
        if keys is None:
            self._abort_all = True
        else:
            self._aborted |= keys

    @property
    def most(self) -> int:
        """New tokens of any reply, at most."""
        return max((reply.limit for reply in self.replies), default=0)

    @torch.no_grad()
    def play(self, start: Start, between: Callable[[], int]) -> None:
        """Run to the end. ``between()`` is called before the prompts and before every step: it may load weights, and gives the
        version of those that the step will use."""
        version = between()
        if not (live := self._still([reply for reply in self.replies if reply.finish is None])):
            return
        state, drawn = start(live), 0
        while True:
            self._take(state, drawn, version)
            if not self._still(state.live):
                return
            version, drawn = between(), drawn + 1
            if not self._still(state.live):
                return
            state.step()

    def _still(self, replies: Sequence[Reply]) -> list[Reply]:
        """Those that run on; the aborted are marked."""
        for reply in replies:
            if reply.finish is None and (self._abort_all or reply.request.key in self._aborted):
                reply.finish = "aborted"
        return [reply for reply in replies if reply.finish is None]

    def _take(self, state: Batch, drawn: int, version: int) -> None:
        """Draw token number ``drawn`` for each row and note it where the row still runs."""
        samplings = [reply.request.sampling for reply in state.live]
        seeds_R = np.array([reply.request.seed for reply in state.live], dtype=np.uint64)
        uniform_R = torch.from_numpy(uniforms(seeds_R, drawn))
        token_R, logp_R = draw(state.logits_RV, uniform_R, samplings)
        state.token_R = token_R
        wide, ended = logp_R.dtype == torch.float64, []
        for reply, token, logp in zip(state.live, token_R.tolist(), logp_R.tolist()):
            if reply.finish is not None:
                continue
            reply.wide = wide
            if not reply.versions or reply.versions[-1][0] != version:
                reply.versions.append((version, len(reply.tokens)))
            reply.tokens.append(token)
            reply.logp.append(logp)
            if token in self.tokenizer.eos_ids or self._stopped(reply):
                reply.finish = "stop"
            elif len(reply.tokens) >= reply.limit:
                reply.finish = "length"
            if reply.finish is not None:
                ended.append(reply.place)
        if ended:
            self._told(ended)

    def _stopped(self, reply: Reply) -> bool:
        """Whether the reply's text has come to hold a stop string. A token is at least a byte, so the tail is enough."""
        stop = reply.request.sampling.stop
        if not stop:
            return False
        tail = reply.tokens[-(max(len(s.encode()) for s in stop) + 4) :]
        text = self.tokenizer.decode(tail, skip_special=False)
        return any(s in text for s in stop)
