"""The data of a run: tasks, attempts, experiences, groups, scores, and the records that engines and backends exchange.

Arrays are numpy. Shape suffixes: T tokens of one sequence, N action tokens, B sequences, A attempts, K calls, V vocabulary.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trinity_core.errors import DataError

Message = dict[str, Any]
"""One chat message: ``{"role": "user", "content": "…"}`` (plus ``tool_calls``, ``name`` where a template knows them)."""
Role = Literal["sample", "greedy", "expert", "chosen", "rejected"]
Finish = Literal["stop", "length", "aborted"]
Axis = Literal["token", "action", "call", "sequence"]
AXES: tuple[str, ...] = ("token", "action", "call", "sequence")


class Origin(enum.IntEnum):
    """Where a token of an experience came from. Action tokens are *sampled* or *target*."""

    CONTEXT = 0
    """Prompt, tool output, template: never trained."""
    SAMPLED = 1
    """Drawn by the policy in this experience."""
    TARGET = 2
    """Not sampled by us but to be learned: SFT answers, expert traces, both sides of a preference."""
    HISTORY = 3
    """The policy's own earlier words rendered again: never trained."""


@dataclass(frozen=True)
class Task:
    """One thing to do. The kernel sets ``id`` to a hash of (taskset slot, row); what a taskset gives is replaced."""

    id: str
    messages: tuple[Message, ...]
    answer: str | None = None
    """The gold answer, where the taskset has one."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Whatever the taskset wants workflow, environment or reward to know. Plain data (msgpack)."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What is to be learned, by role: *expert, chosen, rejected*. A list of messages that goes on from ``messages`` (only the
    assistant's are learned), or a text without any template (continued pre-training; then ``messages`` is empty). Several
    experts are a list of those. A task with something given is recorded, not played; an evaluation plays it."""


# --- scores -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ok:
    """A finite score. ``parts`` are named sub-scores, logged."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in {"value": self.value, **self.parts}.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise DataError(
                    f"Ok.{name}: a score is a finite number, got {value!r}. Return Invalid(reason) if there is none"
                )


@dataclass(frozen=True)
class Invalid:
    """No score exists for this attempt (e.g. a gold answer that cannot be read). Never counted as 0; not retried."""

    reason: str


@dataclass(frozen=True)
class Fault:
    """Scoring or playing broke (timeout, exception, dead process). Never counted as 0."""

    reason: str
    retryable: bool = True


Score = Ok | Invalid | Fault


# --- experience -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """How one generation is drawn. Temperature 0 is greedy; its log-probabilities are taken at temperature 1."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    max_tokens: int = 128
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise DataError(f"Sampling.temperature: must be 0 (greedy) or more, got {self.temperature}")
        if not 0 < self.top_p <= 1 or self.top_k < 0:
            raise DataError(f"Sampling: top_p must be in (0, 1] and top_k 0 or more, got {self.top_p} and {self.top_k}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def logp_temperature(self) -> float:
        """The temperature at which log-probabilities are stored and trained."""
        return 1.0 if self.greedy else self.temperature

    @property
    def constrained(self) -> bool:
        """Whether the distribution drawn from is not softmax(logits / T)."""
        return not self.greedy and (self.top_p < 1.0 or self.top_k > 0)


@dataclass(frozen=True)
class Extra:
    """A named array that travels with an experience. ``axis`` says what its first dimension runs over."""

    array: NDArray[Any]
    axis: Axis

    def __post_init__(self) -> None:
        if self.axis not in AXES:
            raise DataError(f"Extra.axis: {self.axis!r} is unknown. Choose one of {', '.join(AXES)}")


@dataclass
class Call:
    """One generation inside an experience: tokens ``start:stop`` of it."""

    start: int
    stop: int
    step: int
    """Number of this call within the attempt, from 0."""
    versions: list[tuple[int, int]]
    """``(version, start)``: which weights produced the tokens from ``start`` on."""
    sampling: Sampling
    finish: Finish = "stop"
    state: str | None = None
    """Hash of the state the call was taken in (``chat.mark(state=…)``)."""
    reward: float | None = None
    """Reward of this step (``chat.mark(reward=…)``)."""
    engine: str = "policy"


@dataclass
class Experience:
    """One token sequence of an attempt. The first token is never an action: nothing predicts it."""

    tokens_T: NDArray[np.int32]
    origin_T: NDArray[np.uint8]
    logp_T: NDArray[np.float32]
    """log softmax(logits / T) of sampled tokens before truncation; NaN elsewhere."""
    calls: list[Call] = field(default_factory=list)
    token_reward_T: NDArray[np.float32] | None = None
    extras: dict[str, Extra] = field(default_factory=dict)
    index: int = 0
    """Order of creation within the attempt."""
    parent: int | None = None
    """The experience it branched from."""

    def __post_init__(self) -> None:
        length = len(self.tokens_T)
        for name in ("origin_T", "logp_T", "token_reward_T"):
            array = getattr(self, name)
            if array is not None and len(array) != length:
                raise DataError(f"Experience.{name}: {len(array)} entries for {length} tokens")
        if not self.extras:
            return
        sizes = {"token": length, "action": len(self.action_T), "call": len(self.calls), "sequence": 1}
        for name, extra in self.extras.items():
            if len(extra.array) != sizes[extra.axis]:
                raise DataError(
                    f"Experience.extras[{name!r}]: {len(extra.array)} entries on axis {extra.axis!r} of size {sizes[extra.axis]}"
                )

    @property
    def action_T(self) -> NDArray[np.intp]:
        """Positions of the action tokens (sampled or target), never position 0."""
        mask = (self.origin_T == Origin.SAMPLED) | (self.origin_T == Origin.TARGET)
        if len(mask):
            mask[0] = False
        return np.flatnonzero(mask)

    @property
    def version(self) -> int | None:
        """The oldest version that produced a token of it; ``None`` if nothing was sampled."""
        return min((version for call in self.calls for version, _ in call.versions), default=None)


@dataclass
class Attempt:
    """One play of one task."""

    experiences: list[Experience] = field(default_factory=list)
    role: Role = "sample"
    text: str = ""
    """The final assistant text, what rewards read first."""
    messages: list[Message] = field(default_factory=list)
    """The whole conversation."""
    info: dict[str, Any] = field(default_factory=dict)
    score: Score | None = None
    index: int = 0
    task: Task | None = None
    """The task played: rewards read ``attempt.task.answer``."""

    @property
    def num_actions(self) -> int:
        return sum(len(experience.action_T) for experience in self.experiences)

    @property
    def truncated(self) -> bool:
        """Whether the last call ran out of tokens."""
        calls = [call for experience in self.experiences for call in experience.calls]
        return bool(calls) and max(calls, key=lambda call: call.step).finish == "length"

    @property
    def value(self) -> float | None:
        """The score where there is one."""
        return self.score.value if isinstance(self.score, Ok) else None


@dataclass
class Group:
    """The attempts at one task in one draw: the atom that is stored, leased and credited whole."""

    id: str
    """``<run id>/<hash of (taskset slot, row, draw)>``."""
    task: Task
    attempts: list[Attempt]
    slot: str = ""
    row: int = 0
    draw: int = 0
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """(chosen, rejected) indices into ``attempts``."""

    @property
    def version(self) -> int | None:
        """The oldest version that produced a token of it."""
        versions = [e.version for a in self.attempts for e in a.experiences if e.version is not None]
        return min(versions, default=None)

    @property
    def num_tokens(self) -> int:
        return sum(len(e.tokens_T) for a in self.attempts for e in a.experiences)


@dataclass
class Result:
    """What a workflow returns: its own reward (if it has one), the final text (default: the last reply), notes."""

    reward: float | Score | None = None
    text: str | None = None
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Step:
    """What an environment answers to an action."""

    messages: list[Message] = field(default_factory=list)
    """What the policy sees next."""
    reward: float | None = None
    """Reward of this step, if the world gives one."""
    done: bool = False
    state: str | None = None
    """A hash of the state that the next action is taken in."""


# --- engine -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Key:
    """Names one generation of one run. Sampling noise depends on the run's seed and this key, on nothing else."""

    slot: str
    row: int
    draw: int
    attempt: int
    attempt_try: int = 0
    call: int = 0
    stream: str = "play"
    """*play*, or the name of an evaluation: evaluation has its own seed streams."""


@dataclass(frozen=True)
class Request:
    """One generation asked of an engine."""

    key: Key
    tokens_T: NDArray[np.int32]
    sampling: Sampling
    seed: int


@dataclass
class Completion:
    """What an engine answers: new tokens (with the stop token, if it was drawn) and their log-probabilities."""

    tokens_N: NDArray[np.int32]
    logp_N: NDArray[np.float32]
    finish: Finish
    versions: list[tuple[int, int]]
    """``(version, start)``, ``start`` counted from the first new token."""


@dataclass
class Scores:
    """Log-probability of each token given those before it (raw distribution, T = 1); NaN for the first."""

    logp_T: NDArray[np.float32]
    top_ids_TK: NDArray[np.int32] | None = None
    top_logp_TK: NDArray[np.float32] | None = None


# --- delivery ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weights:
    """One version on its way to an engine. Exactly one of the carriers is set."""

    version: int
    kind: Literal["module", "tensors", "folder", "adapter", "handle"]
    payload: Any
    """A shared module; ``{name: tensor}`` (a copy); a safetensors folder (its path, a string); adapters, as one or the other; a
    remote handle."""
    digest: int | None = None
    """Sum mod 2^64 over all tensors of the elements' bit patterns in the dtype sent."""


@dataclass(frozen=True)
class Receipt:
    """An engine's acknowledgement: the version it now samples from, and how it knows."""

    version: int
    engine: str
    evidence: Literal["same_object", "digest", "probe"]
    digest: int | None = None


# --- trainer ----------------------------------------------------------------------------------------------------------


@dataclass
class UpdateResult:
    """What one optimizer step reports."""

    loss: float
    grad_norm: float
    """Global norm before clipping."""
    lr: float
    stats: dict[str, float]
    moved: float = 0.0
    """Share of trained weights whose stored value changed."""
    skipped: str | None = None
    """Why the step was not taken (non-finite gradient), else ``None``."""


@dataclass(frozen=True)
class Entry:
    """One group as the ledger's index shows it: what a sample strategy may look at."""

    id: str
    draw: int
    version: int | None
    """Oldest trainer step of its weights; ``None`` if nothing was sampled."""
    uses: int
    reward: float | None
    source: str
    """Taskset slot."""
    sequence: int
    """Order of arrival."""


@dataclass(frozen=True)
class Lease:
    """Groups handed to one owner for one step until ``ttl_s`` after the last renewal."""

    id: str
    owner: str
    step: int
    group_ids: Sequence[str]
