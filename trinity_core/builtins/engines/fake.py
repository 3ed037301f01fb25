"""An engine that samples from a table: numpy alone, so that a process which only plays starts fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo.digest import digest_tensors
from trinity_core.builtins.fake.sampler import Wave
from trinity_core.builtins.fake.table import (
    Table,
    log_softmax,
    prefix_hashes,
    read_weights,
    refuse_model,
    starting_table,
    state_of,
)
from trinity_core.builtins.fake.tokenizer import CharTokenizer
from trinity_core.config.schema import RunConfig
from trinity_core.errors import DataError, DeliveryError
from trinity_core.protocols import Engine, LiveEngine, RunContext
from trinity_core.types import Completion, Key, Receipt, Request, Scores, Weights


@dataclass(frozen=True)
class FakeEngine(Engine):
    """Samples from a table policy (:mod:`trinity_core.builtins.fake`). Its size comes with the weights it loads."""

    states: int = 4096
    """Rows of the table it starts with, where it is used without a backend."""
    alphabet: str = "0123456789"
    """Characters a fresh table prefers."""
    noise: float = 0.01
    """Standard deviation of a fresh table's logits."""
    latency_s: float = 0.0
    """Seconds each generation takes, after its first token."""

    accepts: ClassVar[frozenset[str]] = frozenset({"tensors", "module", "folder"})
    beside: ClassVar[tuple[str, ...]] = ("model=fake", "backend=fake")
    """What a run that selects it needs beside it."""
    capabilities: ClassVar[frozenset[str]] = frozenset({"score", "waves", "top_p", "top_k", "stop", "deterministic"})

    def refuse(self, config: RunConfig) -> str | None:
        return refuse_model(config)

    def open(self, run: RunContext) -> LiveFakeEngine:
        logits_SV = starting_table(
            run.config.model.path, states=self.states, alphabet=self.alphabet, noise=self.noise, seed=run.seed
        )
        return LiveFakeEngine(Table(logits_SV), self.latency_s)


class LiveFakeEngine(LiveEngine):
    """A table, its version, and the waves in flight."""

    def __init__(self, table: Table, latency_s: float = 0.0) -> None:
        self.tokenizer = CharTokenizer()
        self.version = -1
        self.table = table
        self.latency_s = latency_s
        self._waves: list[Wave] = []

    async def generate(self, request: Request) -> Completion:
        return (await self.generate_wave([request]))[0]

    async def generate_wave(self, requests: Sequence[Request]) -> list[Completion]:
        for request in requests:
            if request.sampling.max_tokens < 1:
                raise DataError(
                    f"{request.key}: sampling.max_tokens is {request.sampling.max_tokens}; ask for at least one token"
                )
        wave = Wave.of(requests, self.table, self.version)
        self._waves.append(wave)
        try:
            await wave.play(self.latency_s)
        finally:
            self._waves.remove(wave)
        return [reply.completion() for reply in wave.replies]

    async def score(self, tokens_T: NDArray[np.int32], *, topk: int = 0) -> Scores:
        tokens_T = np.asarray(tokens_T, dtype=np.int32)
        hash_T = prefix_hashes(tokens_T, np.array([0, len(tokens_T)]))
        logp_TV = log_softmax(self.table.logits_SV[state_of(hash_T[:-1], self.table.states)])
        logp_T = np.full(len(tokens_T), np.nan)
        logp_T[1:] = np.take_along_axis(logp_TV, tokens_T[1:, None].astype(np.int64), axis=1)[:, 0]
        if not topk:
            return Scores(logp_T)
        ids_TK = np.zeros((len(tokens_T), topk), dtype=np.int32)
        top_TK = np.full((len(tokens_T), topk), np.nan)
        ids_TK[1:] = np.argsort(-logp_TV, axis=1, kind="stable")[:, :topk]
        top_TK[1:] = np.take_along_axis(logp_TV, ids_TK[1:].astype(np.int64), axis=1)
        return Scores(logp_T, ids_TK, top_TK)

    async def load(self, weights: Weights, *, in_flight: Literal["finish", "abort", "continue"] = "finish") -> Receipt:
        table, receipt = self._receive(weights)
        for wave in self._waves:
            if in_flight == "abort":
                wave.abort()
            elif in_flight == "continue":
                wave.switch(table, weights.version)
        self.table, self.version = table, weights.version
        return receipt

    def _receive(self, weights: Weights) -> tuple[Table, Receipt]:
        version, payload = weights.version, weights.payload
        if weights.kind == "module":
            if not isinstance(payload, Table):
                raise DeliveryError(f"engine fake shares a Table, got {type(payload).__name__}. Use backend=fake")
            return payload, Receipt(version, "fake", "same_object")
        if weights.kind == "tensors":
            if set(payload) != {"logits"}:
                raise DeliveryError(f"engine fake takes one tensor 'logits', got {sorted(payload)}. Use backend=fake")
            table = Table(np.array(payload["logits"], dtype=np.float64))
        elif weights.kind == "folder":
            table = Table(read_weights(Path(payload)))
        else:
            known = ", ".join(sorted(FakeEngine.accepts))
            raise DeliveryError(f"engine fake cannot load weights of kind {weights.kind!r}. It takes {known}")
        return table, Receipt(version, "fake", "digest", digest_tensors([("logits", table.logits_SV)]))

    async def abort(self, keys: Sequence[Key]) -> None:
        for wave in self._waves:
            wave.abort(frozenset(keys))
