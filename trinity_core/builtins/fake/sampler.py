"""Drawing from the table: a wave of replies, one position at a time, by inverse CDF."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trinity_core.builtins.fake.table import Table, extend_hash, log_softmax, prefix_hashes, state_of
from trinity_core.builtins.fake.tokenizer import CharTokenizer
from trinity_core.rollout.seeds import uniforms
from trinity_core.types import Completion, Finish, Key, Request

_TOKENIZER = CharTokenizer()


@dataclass
class Reply:
    """One reply being drawn."""

    request: Request
    hash: NDArray[np.uint64]
    """Of everything so far, one element."""
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    finish: Finish | None = None

    def completion(self) -> Completion:
        if self.finish is None:
            raise AssertionError("the reply is not finished")
        tokens_N, logp_N = np.array(self.tokens, dtype=np.int32), np.array(self.logp, dtype=np.float64)
        return Completion(tokens_N, logp_N, self.finish, self.versions)  # type: ignore[arg-type]


@dataclass
class Wave:
    """Replies drawn together. What is drawn for one depends on its request alone: rows never mix."""

    table: Table
    version: int
    replies: list[Reply]

    @classmethod
    def of(cls, requests: Sequence[Request], table: Table, version: int) -> Wave:
        return cls(table, version, [Reply(request, _prompt_hash(request)) for request in requests])

    async def play(self, latency_s: float) -> None:
        """Draw until every reply is finished. ``latency_s`` passes after the first token, so that weights can change or
        replies be aborted on the way; :meth:`switch` and :meth:`abort` may be called then."""
        self.draw_one()
        if latency_s > 0:
            await asyncio.sleep(latency_s)
        while self.draw_one():
            pass

    def switch(self, table: Table, version: int) -> None:
        """Go on with other weights."""
        self.table, self.version = table, version

    def abort(self, keys: frozenset[Key] | None = None) -> None:
        """End replies where they stand; ``None``: all."""
        for reply in self.replies:
            if reply.finish is None and (keys is None or reply.request.key in keys):
                reply.finish = "aborted"

    def draw_one(self) -> bool:
        """One more token for each unfinished reply; whether any was drawn."""
        going = [reply for reply in self.replies if reply.finish is None]
        if not going:
            return False
        hash_B = np.concatenate([reply.hash for reply in going])
        logits_BV = self.table.logits_SV[state_of(hash_B, self.table.states)]
        temperature_B = np.array([reply.request.sampling.logp_temperature for reply in going])
        logp_BV = log_softmax(logits_BV / temperature_B[:, None])
        token_B = self._choose(going, logp_BV)
        hash_B = extend_hash(hash_B, token_B)
        for row, (reply, token) in enumerate(zip(going, token_B.tolist())):
            if not reply.versions or reply.versions[-1][0] != self.version:
                reply.versions.append((self.version, len(reply.tokens)))
            reply.hash = hash_B[row : row + 1]
            reply.tokens.append(token)
            reply.logp.append(float(logp_BV[row, token]))
            reply.finish = _finish(reply)
        return True

    @staticmethod
    def _choose(going: Sequence[Reply], logp_BV: NDArray[np.float64]) -> NDArray[np.int32]:
        weight_BV = np.exp(logp_BV)
        for row, reply in enumerate(going):
            sampling = reply.request.sampling
            if sampling.constrained:
                weight_BV[row] = truncate(weight_BV[row], top_k=sampling.top_k, top_p=sampling.top_p)
        # Replies of a wave stand at the same position; the number there depends on the reply's own seed alone.
        seed_B = np.array([reply.request.seed % (1 << 64) for reply in going], dtype=np.uint64)
        uniform_B = uniforms(seed_B, len(going[0].tokens))
        cumulative_BV = np.cumsum(weight_BV, axis=1)
        token_B = (cumulative_BV <= (uniform_B * cumulative_BV[:, -1])[:, None]).sum(axis=1)
        greedy_B = np.array([reply.request.sampling.greedy for reply in going])
        chosen_B: NDArray[np.int32] = np.where(greedy_B, logp_BV.argmax(axis=1), token_B).astype(np.int32)
        return chosen_B


def truncate(weight_V: NDArray[np.float64], *, top_k: int, top_p: float) -> NDArray[np.float64]:
    """Zero all but the ``top_k`` likeliest tokens, then all past the first set whose share reaches ``top_p``.

    >>> truncate(np.array([0.1, 0.6, 0.3]), top_k=0, top_p=0.7)
    array([0. , 0.6, 0.3])
    """
    order_V = np.argsort(-weight_V, kind="stable")
    if top_k > 0:
        order_V = order_V[:top_k]
    share_V = np.cumsum(weight_V[order_V])
    kept = order_V[: int(np.searchsorted(share_V, top_p * share_V[-1])) + 1]
    result = np.zeros_like(weight_V)
    result[kept] = weight_V[kept]
    return result


def _prompt_hash(request: Request) -> NDArray[np.uint64]:
    tokens_T = np.asarray(request.tokens_T, dtype=np.int32)
    if not len(tokens_T):
        return np.zeros(1, np.uint64)
    return prefix_hashes(tokens_T, np.array([0, len(tokens_T)]))[-1:]


def _finish(reply: Reply) -> Finish | None:
    sampling = reply.request.sampling
    if reply.tokens[-1] in _TOKENIZER.eos_ids:
        return "stop"
    if sampling.stop and _TOKENIZER.decode(reply.tokens, skip_special=False).endswith(sampling.stop):
        return "stop"
    return "length" if len(reply.tokens) >= sampling.max_tokens else None
