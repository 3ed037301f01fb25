"""Small true objects for tests: tasks, attempts, groups, a run to open components in, and a taskset that can be learned.

Nothing here stands in for code of ours: a :class:`FakeRun` is what a component sees of a run, and the model named
``fake`` is a policy that really samples and really learns (:mod:`trinity_core.builtins.fake`).
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trinity_core.builtins.fake.tokenizer import CharTokenizer
from trinity_core.config.schema import Algorithm, Model, Optim, RunConfig, SamplingConfig
from trinity_core.protocols import Reward, RunContext, Taskset, Tokenizer
from trinity_core.types import Attempt, Call, Experience, Group, Ok, Origin, Role, Sampling, Score, Task

if TYPE_CHECKING:
    from trinity_core.rollout.renderer import Renderer

# --- tasks, attempts, groups ------------------------------------------------------------------------------------------


def FakeTask(answer: str | None = None, prompt: str = "say it", **data: Any) -> Task:
    """A task with one user message; ``data`` is whatever the reward or environment wants to know.

    >>> FakeTask("4", "2+2").answer
    '4'
    """
    digest = hashlib.blake2b(repr((prompt, answer)).encode(), digest_size=8).hexdigest()
    return Task(digest, ({"role": "user", "content": prompt},), answer, data)


def FakeAttempt(
    text: str = "",
    *,
    answer: str | None = None,
    task: Task | None = None,
    score: float | Score | None = None,
    role: Role = "sample",
    finish: str = "stop",
    version: int = 0,
    index: int = 0,
    logp: float = -1.0,
    tokenizer: Tokenizer | None = None,
    **info: Any,
) -> Attempt:
    """One play whose only reply is ``text``, in the tokens of the fake model; every sampled token has ``logp``.

    >>> attempt = FakeAttempt("so 4", answer="4")
    >>> attempt.text, attempt.task.answer, attempt.num_actions
    ('so 4', '4', 5)
    """
    tokenizer = tokenizer or CharTokenizer()
    task = task or FakeTask(answer)
    prompt = tokenizer.render(task.messages)
    reply = tokenizer.encode(text) + ([min(tokenizer.eos_ids)] if finish == "stop" else [])
    origin = Origin.SAMPLED if role in ("sample", "greedy") else Origin.TARGET
    return Attempt(
        experiences=[_experience(prompt, reply, origin, version, finish, logp, role == "greedy")],
        role=role,
        text=text,
        messages=[*task.messages, {"role": "assistant", "content": text}],
        info=dict(info),
        score=Ok(float(score)) if isinstance(score, (int, float)) else score,
        index=index,
        task=task,
    )


def fake_group(
    rewards: Sequence[float | Score | None],
    lengths: Sequence[int] | None = None,
    *,
    texts: Sequence[str] | None = None,
    task: Task | None = None,
    draw: int = 0,
    row: int = 0,
    slot: str = "train",
    version: int = 0,
    run: str = "run",
    pairs: Sequence[tuple[int, int]] = (),
    roles: Sequence[Role] | None = None,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
) -> Group:
    """A scored group: one attempt for each reward, of ``lengths`` action tokens (default: 2, 3, 4 … in turn).

    Replies are random digits and log-probabilities random numbers, the same for the same ``seed`` and ``draw``.

    >>> group = fake_group([1.0, 0.0], [3, 2])
    >>> [attempt.num_actions for attempt in group.attempts], group.attempts[0].value
    ([3, 2], 1.0)
    """
    rng = np.random.default_rng([seed, draw])
    task = task or FakeTask("4", f"say {row}")
    if texts is None:
        lengths = lengths or [2 + n % 3 for n in range(len(rewards))]
        texts = ["".join(map(str, rng.integers(0, 10, length - 1))) for length in lengths]
    attempts = []
    for index, (reward, text) in enumerate(zip(rewards, texts, strict=True)):
        role: Role = roles[index] if roles else "sample"
        attempt = FakeAttempt(
            text, task=task, score=reward, role=role, version=version, index=index, tokenizer=tokenizer
        )
        sampled = ~np.isnan(attempt.experiences[0].logp_T)
        attempt.experiences[0].logp_T[sampled] = -rng.uniform(0.1, 3.0, sampled.sum())
        attempts.append(attempt)
    name = hashlib.blake2b(repr((slot, row, draw)).encode(), digest_size=8).hexdigest()
    return Group(f"{run}/{name}", task, attempts, slot, row, draw, list(pairs))


def _experience(
    prompt: Sequence[int], reply: Sequence[int], origin: Origin, version: int, finish: str, logp: float, greedy: bool
) -> Experience:
    tokens_T = np.array([*prompt, *reply], dtype=np.int32)
    start = len(prompt)
    origin_T = np.full(len(tokens_T), Origin.CONTEXT, dtype=np.uint8)
    origin_T[start:] = origin
    logp_T = np.full(len(tokens_T), np.nan, dtype=np.float32)
    calls = []
    if origin == Origin.SAMPLED:
        logp_T[start:] = logp
        sampling = Sampling(temperature=0.0 if greedy else 1.0)
        calls.append(Call(start, len(tokens_T), 0, [(version, 0)], sampling, finish))  # type: ignore[arg-type]
    return Experience(tokens_T, origin_T, logp_T, calls)


# --- a taskset that a table can learn ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits(Taskset):
    """ "say 7" → ``7``: a bandit with ten arms in each of ``size`` states, learned by the fake model within seconds."""

    size: int = 10
    """Rows; row ``r`` asks for the digit ``r mod 10``."""
    start: int = 0
    """Number of the first row."""
    demonstrations: bool = False
    """Give the digit as an expert's answer: the task is recorded, not played."""
    preferences: bool = False
    """Give the digit as chosen and another one as rejected."""

    def __len__(self) -> int:
        return self.size

    def gives(self) -> frozenset[str]:
        roles = {"expert"} if self.demonstrations else set()
        return frozenset(roles | ({"chosen", "rejected"} if self.preferences else set()))

    def __getitem__(self, row: int) -> Task:
        if not 0 <= row < self.size:
            raise IndexError(row)
        number = self.start + row
        task = FakeTask(str(number % 10), f"say {number}")
        said = {role: str((number + 3 * (role == "rejected")) % 10) for role in sorted(self.gives())}
        return replace(task, given={role: [{"role": "assistant", "content": text}] for role, text in said.items()})


@dataclass(frozen=True)
class Letters(Reward):
    """A score for any text at all, even of a policy that knows nothing: the share of its characters that are even.

    >>> Letters()(FakeAttempt("abcd"))  # b and d: 98 and 100
    0.5
    """

    def __call__(self, attempt: Attempt) -> float:
        return sum(ord(character) % 2 == 0 for character in attempt.text) / max(len(attempt.text), 1)


# --- runs -------------------------------------------------------------------------------------------------------------


def config_for(*words: str) -> RunConfig:
    """The checked config of a run of the fake model, with ``words`` as typed after ``trinity run``."""
    from trinity_core.config.check import check
    from trinity_core.config.compose import compose

    return check(compose(["model=fake", "backend=fake", "engine=fake", *words]))


def bare_config(**nodes: Any) -> RunConfig:
    """A run config with no components: the shared nodes alone, for the fake model and its learning rate.

    >>> bare_config(seed=3).seed
    3
    """
    whole: dict[str, Any] = {
        "model": Model("fake"),
        "algorithm": Algorithm("none"),
        "optim": Optim(lr=0.3),
        "sampling": SamplingConfig(max_response=4),
    } | nodes
    return RunConfig(**whole)


class FakeRun(RunContext):
    """What a component may know of a run, without the run: an own folder, a seed, the shared nodes.

    ``logged`` and ``alarms`` hold what components logged and sounded. Give ``config=config_for(...)`` for one with components.
    """

    def __init__(
        self,
        *,
        dir: Path | None = None,
        config: RunConfig | None = None,
        id: str = "run",
        mode: str = "both",
        seed: int | None = None,
        step: int = 0,
        tokenizer: Tokenizer | None = None,
        models: Mapping[str, Any] | None = None,
    ) -> None:
        # Held, so that the folder goes with the object.
        self._temporary = tempfile.TemporaryDirectory(prefix="trinity-")
        self.dir = dir or Path(self._temporary.name)
        self.config = config or bare_config()
        self.id, self.mode, self.step = id, mode, step
        self.seed = self.config.seed if seed is None else seed
        self.tokenizer = tokenizer or CharTokenizer()
        self.models = dict(models or {})
        self.logged: dict[str, list[float]] = {}
        self.alarms: list[tuple[str, str]] = []
        """(action, message) of each alarm."""

    @cached_property
    def renderer(self) -> Renderer:  # type: ignore[override]
        from trinity_core.rollout.renderer import Renderer

        return Renderer(self.tokenizer)

    def log(self, name: str, value: float) -> None:
        self.logged.setdefault(name, []).append(float(value))

    def alarm(self, action: Literal["warn", "checkpoint", "stop"], message: str) -> None:
        self.alarms.append((action, message))

    def rng(self, slot: str) -> np.random.Generator:
        digest = hashlib.blake2b(f"{self.seed}/{slot}".encode(), digest_size=16).digest()
        return np.random.default_rng(int.from_bytes(digest, "little"))
