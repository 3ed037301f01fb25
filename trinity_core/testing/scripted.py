"""An engine whose replies are written down, and what plays on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trinity_core.builtins.fake.tokenizer import END, CharTokenizer
from trinity_core.config.schema import Algorithm, Explorer, Part, RewardSlot, SamplingConfig
from trinity_core.protocols import LiveEngine
from trinity_core.rollout.scheduler import Scheduler
from trinity_core.rollout.score import Scorer
from trinity_core.testing.fakes import Digits, FakeRun, bare_config
from trinity_core.types import Completion, Request


class Scripted(LiveEngine):
    """Answers each request with ``say(request)``, one token per character and the end, cut at ``max_tokens``."""

    def __init__(self, say: Callable[[Request], str] = lambda request: str(request.seed % 10)) -> None:
        self.tokenizer = CharTokenizer()
        self.version = 0
        self.say = say
        self.waves: list[list[Request]] = []

    async def generate(self, request: Request) -> Completion:
        tokens = [*self.tokenizer.encode(self.say(request)), END]
        finish = "stop" if len(tokens) <= request.sampling.max_tokens else "length"
        tokens = tokens[: request.sampling.max_tokens]
        logp = np.linspace(-1, -2, len(tokens), dtype=np.float32)
        return Completion(np.array(tokens, np.int32), logp, finish, [(self.version, 0)])

    async def generate_wave(self, requests: Any) -> list[Completion]:
        self.waves.append(list(requests))
        await asyncio.sleep(0)
        return [await self.generate(request) for request in requests]


def run_of(
    *, id: str = "run", seed: int = 0, group_size: int = 4, response: int = 8, total: int | None = None, **explorer: Any
) -> FakeRun:
    config = bare_config(
        seed=seed,
        algorithm=Algorithm("none", group_size=group_size),
        sampling=SamplingConfig(max_response=response, max_attempt_tokens=total),
        explorer=Explorer(**explorer),
    )
    return FakeRun(config=config, id=id)


def parts(**components: Any) -> dict[str, Part]:
    """Reward slots: a component, or a component and its slot's keys."""
    made = {}
    for slot, given in components.items():
        component, keys = given if isinstance(given, tuple) else (given, RewardSlot())
        made[slot] = Part("reward", slot, f"rewards.{slot}", component, keys)
    return made


def scheduler_of(
    run: FakeRun,
    workflow: Any,
    engine: LiveEngine,
    *,
    environment: Any = None,
    rewards: Mapping[str, Part] | None = None,
    tasksets: Any = None,
    **options: Any,
) -> Scheduler:
    return Scheduler(
        run, workflow, environment, engine, Scorer(rewards or {}, run), tasksets or {"d": Digits()}, **options
    )
