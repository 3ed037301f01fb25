"""The smallest explorer: groups sampled straight from a live engine, for tests of engines, backends and algorithms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from trinity_core.protocols import LiveEngine, Taskset, Tokenizer
from trinity_core.rollout.seeds import seed_of
from trinity_core.types import Attempt, Call, Completion, Experience, Group, Key, Ok, Origin, Request, Sampling, Task


def exact(attempt: Attempt) -> float:
    """1 where the reply is the answer, else 0."""
    return float(attempt.task is not None and attempt.text.strip() == attempt.task.answer)


def requests_for(
    tokenizer: Tokenizer,
    tasks: Sequence[tuple[int, Task]],
    num_attempts: int,
    *,
    draw: int = 0,
    seed: int = 0,
    sampling: Sampling | None = None,
) -> list[Request]:
    """``num_attempts`` requests for each (row, task); draws are numbered from ``draw``."""
    sampling = sampling or Sampling(max_tokens=4)
    made = []
    for place, (row, task) in enumerate(tasks):
        prompt_T = np.array(tokenizer.render(task.messages), dtype=np.int32)
        for attempt in range(num_attempts):
            key = Key("train", row, draw + place, attempt)
            made.append(Request(key, prompt_T, sampling, seed_of(seed, key)))
    return made


def sample_groups(
    engine: LiveEngine,
    taskset: Taskset,
    rows: Sequence[int],
    num_attempts: int,
    *,
    draw: int = 0,
    seed: int = 0,
    sampling: Sampling | None = None,
    reward: Callable[[Attempt], float] = exact,
) -> list[Group]:
    """Play each row once with ``num_attempts`` attempts and score them: groups as the kernel would store them."""
    tasks = [(row, taskset[row]) for row in rows]
    requests = requests_for(engine.tokenizer, tasks, num_attempts, draw=draw, seed=seed, sampling=sampling)
    completions = asyncio.run(_waves(engine, requests))
    groups = []
    for place, (row, task) in enumerate(tasks):
        mine = range(place * num_attempts, (place + 1) * num_attempts)
        attempts = [
            attempt_of(engine.tokenizer, task, requests[n], completions[n], index) for index, n in enumerate(mine)
        ]
        for attempt in attempts:
            attempt.score = Ok(reward(attempt))
        groups.append(Group(f"run/{draw + place:016x}", task, attempts, "train", row, draw + place))
    return groups


async def _waves(engine: LiveEngine, requests: Sequence[Request]) -> list[Completion]:
    return [c for n in range(0, len(requests), 64) for c in await engine.generate_wave(requests[n : n + 64])]


def attempt_of(tokenizer: Tokenizer, task: Task, request: Request, completion: Completion, index: int) -> Attempt:
    """One attempt of one call."""
    start = len(request.tokens_T)
    tokens_T: NDArray[np.int32] = np.concatenate([request.tokens_T, completion.tokens_N]).astype(np.int32)
    origin_T = np.full(len(tokens_T), Origin.CONTEXT, dtype=np.uint8)
    origin_T[start:] = Origin.SAMPLED
    logp_T = np.full(len(tokens_T), np.nan, dtype=np.float32)
    logp_T[start:] = completion.logp_N
    call = Call(start, len(tokens_T), 0, completion.versions, request.sampling, completion.finish)
    text = tokenizer.decode(completion.tokens_N.tolist())
    messages = [*task.messages, {"role": "assistant", "content": text}]
    experience = Experience(tokens_T, origin_T, logp_T, [call])
    return Attempt([experience], "sample", text, messages, index=index, task=task)
