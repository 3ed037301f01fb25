"""One wave: several requests as one batch, from prompts to completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from trinity_core.builtins.engines.hf_cache import make_cache
from trinity_core.builtins.engines.hf_sample import draw
from trinity_core.builtins.models.causal import CausalLM
from trinity_core.protocols import Tokenizer
from trinity_core.rollout.seeds import uniforms
from trinity_core.types import Completion, Finish, Key, Request

CROWDED = 0.75
"""Rows leave the batch, and the cache is compacted, once at most this share of it still runs."""


@dataclass
class Reply:
    """What one request has got so far."""

    request: Request
    limit: int
    """Most tokens it may get: ``max_tokens``, or what the context leaves."""
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    finish: Finish | None = None
    wide: bool = False
    """Log-probabilities stay float64: the model computes in it."""

    def completion(self) -> Completion:
        logp_N = np.asarray(self.logp, np.float64 if self.wide else np.float32)
        return Completion(np.asarray(self.tokens, np.int32), logp_N, self.finish or "aborted", self.versions)  # type: ignore[arg-type]


class Wave:
    """Requests that are played together. ``between`` is called before every step: it may load weights."""

    def __init__(self, requests: Sequence[Request], tokenizer: Tokenizer, context: int | None) -> None:
        self.tokenizer = tokenizer
        self.replies = []
        for request in requests:
            room = (
                request.sampling.max_tokens
                if context is None
                else min(request.sampling.max_tokens, context - len(request.tokens_T))
            )
            reply = Reply(request, room)
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

    @torch.no_grad()
    def play(self, model: Callable[[], tuple[CausalLM, int]]) -> None:
        """Run to the end. ``model()`` gives the weights and version for the next step."""
        live = [reply for reply in self.replies if reply.finish is None]
        lm, version = model()
        with lm.recipe():
            if not (live := self._still(live)):
                return
            state = _Batch.prefill(lm, live)
            while True:
                self._take(state, version)
                if not self._still(state.live):
                    return
                lm, version = model()
                if not self._still(state.live):
                    return
                state.step(lm)

    def _still(self, replies: Sequence[Reply]) -> list[Reply]:
        """Those that run on; the aborted are marked."""
        for reply in replies:
            if reply.finish is None and (self._abort_all or reply.request.key in self._aborted):
                reply.finish = "aborted"
        return [reply for reply in replies if reply.finish is None]

    def _take(self, state: _Batch, version: int) -> None:
        """Draw one token for each row and note it where the row still runs."""
        samplings = [reply.request.sampling for reply in state.live]
        seeds_R = np.array([reply.request.seed for reply in state.live], dtype=np.uint64)
        uniform_R = torch.from_numpy(uniforms(seeds_R, state.drawn))
        token_R, logp_R = draw(state.logits_RV, uniform_R, samplings)
        state.token_R, state.drawn = token_R, state.drawn + 1
        wide = logp_R.dtype == torch.float64
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

    def _stopped(self, reply: Reply) -> bool:
        """Whether the reply's text has come to hold a stop string. A token is at least a byte, so the tail is enough."""
        stop = reply.request.sampling.stop
        if not stop:
            return False
        tail = reply.tokens[-(max(len(s.encode()) for s in stop) + 4) :]
        text = self.tokenizer.decode(tail, skip_special=False)
        return any(s in text for s in stop)


@dataclass
class _Batch:
    """Rows in flight: their cache, the mask of real tokens, and the logits of what comes next."""

    live: list[Reply]
    """The reply of each row; rows that have finished stay until the batch is compacted."""
    cache: DynamicCache
    mask_RL: Tensor | None
    """Real tokens of the cache; ``None``: all of them are."""
    position_R: Tensor
    logits_RV: Tensor
    token_R: Tensor
    drawn: int = 0

    @classmethod
    def prefill(cls, lm: CausalLM, live: list[Reply]) -> _Batch:
        """Every different prompt once, padded on the left; then one row per request."""
        place: dict[bytes, int] = {}
        prompt_of_R = [place.setdefault(r.request.tokens_T.astype(np.int64).tobytes(), len(place)) for r in live]
        prompts = [np.frombuffer(prompt, np.int64) for prompt in place]
        length = max(map(len, prompts))
        ids_PL = np.zeros((len(prompts), length), np.int64)
        mask_PL = np.zeros_like(ids_PL)
        for row, prompt in enumerate(prompts):
            ids_PL[row, length - len(prompt) :] = prompt
            mask_PL[row, length - len(prompt) :] = 1
        position_PL = np.maximum(mask_PL.cumsum(1) - 1, 0)
        ids, positions, mask = (torch.from_numpy(array).to(lm.device) for array in (ids_PL, position_PL, mask_PL))
        even = bool(mask_PL.all())
        cache = make_cache(lm)
        hidden_PH = lm.hidden(ids, positions, None if even else mask, cache)[:, -1]
        rows = torch.tensor(prompt_of_R, device=lm.device)
        logits_RV = lm.logits(hidden_PH)[rows]
        if len(prompts) != len(live) or prompt_of_R != list(range(len(live))):
            cache.batch_select_indices(rows)
        return cls(live, cache, None if even else mask[rows], positions[rows, -1], logits_RV, torch.empty(0))

    def step(self, lm: CausalLM) -> None:
        """One more token of every row that runs."""
        running = [i for i, reply in enumerate(self.live) if reply.finish is None]
        if len(running) <= CROWDED * len(self.live):
            rows = torch.tensor(running, device=lm.device)
            self.cache.batch_select_indices(rows)
            self.live = [self.live[i] for i in running]
            self.mask_RL = None if self.mask_RL is None else self.mask_RL[rows]
            self.position_R, self.token_R = self.position_R[rows], self.token_R[rows]
        self.position_R = self.position_R + 1
        if self.mask_RL is not None:
            self.mask_RL = torch.cat([self.mask_RL, torch.ones_like(self.mask_RL[:, :1])], 1)
        hidden = lm.hidden(self.token_R[:, None], self.position_R[:, None], self.mask_RL, self.cache)
        self.logits_RV = lm.logits(hidden[:, -1])
