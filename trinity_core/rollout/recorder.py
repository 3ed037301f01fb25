"""From calls to experiences: what was sampled, exactly as it was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trinity_core.errors import DataError
from trinity_core.types import Call, Completion, Experience, Origin, Sampling


@dataclass
class _Sequence:
    """An experience that still grows."""

    tokens: list[int]
    origin: list[int]
    logp: list[float]
    calls: list[Call] = field(default_factory=list)
    parent: int | None = None

    def append(self, tokens: Sequence[int], origin: int, logp: Sequence[float] | None = None) -> None:
        self.tokens += tokens
        self.origin += [origin] * len(tokens)
        self.logp += [float("nan")] * len(tokens) if logp is None else logp


class Recorder:
    """Turns the calls of one attempt into its experiences.

    A prompt that starts with the exact tokens of an experience grows it: the tokens in between are *context*, the new
    ones *sampled*. Any other prompt branches: a new experience, ``parent`` the one it shares the longest prefix with,
    the policy's own earlier words marked *history* where they can be located. What is given to be learned is recorded the
    same way, as *target* (:meth:`teach`).
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.num_branches = 0
        self.num_sampled = 0
        """Tokens sampled so far, over all calls."""
        self._sequences: list[_Sequence] = []
        self._spoken: list[list[int]] = []

    def record(
        self,
        prompt: Sequence[int],
        completion: Completion,
        sampling: Sampling,
        *,
        state: str | None = None,
        engine: str = "policy",
    ) -> Call:
        """Add one generation. ``prompt`` is what was sent, token for token."""
        prompt = [int(token) for token in prompt]
        sampled = [int(token) for token in completion.tokens_N]
        try:
            logp = [float(x) for x in completion.logp_N]
        except (TypeError, ValueError) as error:
            raise DataError(
                f"the engine returned log-probabilities that are no numbers ({error}). Completion.logp_N is one float a token, "
                "NaN where there is none"
            ) from error
        if not prompt:
            raise DataError("a call needs at least one prompt token: nothing predicts the first token of a sequence")
        if len(sampled) != len(logp):
            raise DataError(f"the engine returned {len(logp)} log-probabilities for {len(sampled)} tokens")
        if any(x > 1e-3 for x in logp):
            raise DataError(f"the engine returned a log-probability of {max(logp):.4g}, and none is above 0")
        if sampled and (not completion.versions or completion.versions[0][1] != 0):
            raise DataError(
                f"the engine does not say which version sampled the first token: versions={completion.versions}"
            )
        sequence = self._behind(prompt)
        start = len(sequence.tokens)
        sequence.append(sampled, Origin.SAMPLED, logp)
        call = Call(
            start=start,
            stop=start + len(sampled),
            step=len(self.calls),
            versions=[(int(version), start + int(at)) for version, at in completion.versions],
            sampling=sampling,
            finish=completion.finish,
            state=state,
            engine=engine,
        )
        sequence.calls.append(call)
        self.calls.append(call)
        self.num_sampled += len(sampled)
        if sampled:
            self._spoken.append(sampled)
        return call

    def teach(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Add words that nobody sampled: *targets* behind ``prompt``, without a call and without log-probabilities."""
        if not prompt or not tokens:
            raise DataError("a target needs at least one token before it, and one of its own")
        words = [int(token) for token in tokens]
        self._behind([int(token) for token in prompt]).append(words, Origin.TARGET)
        self._spoken.append(words)

    def experiences(self) -> list[Experience]:
        """What was recorded so far, in order of creation."""
        return [
            Experience(
                tokens_T=np.asarray(s.tokens, dtype=np.int32),
                origin_T=np.asarray(s.origin, dtype=np.uint8),
                logp_T=np.asarray(s.logp, dtype=np.float32),
                calls=list(s.calls),
                index=index,
                parent=s.parent,
            )
            for index, s in enumerate(self._sequences)
        ]

    def _behind(self, prompt: list[int]) -> _Sequence:
        """The sequence that ends with ``prompt``: one that grew, or a branch."""
        sequence = self._longest_prefix_of(prompt)
        if sequence is None:
            return self._branch(prompt)
        sequence.append(prompt[len(sequence.tokens) :], Origin.CONTEXT)
        return sequence

    def _longest_prefix_of(self, prompt: list[int]) -> _Sequence | None:
        fits = [s for s in self._sequences if len(s.tokens) <= len(prompt) and prompt[: len(s.tokens)] == s.tokens]
        return max(fits, key=lambda s: len(s.tokens), default=None)

    def _branch(self, prompt: list[int]) -> _Sequence:
        shared = [_common_prefix(s.tokens, prompt) for s in self._sequences]
        branch = _Sequence([], [], [])
        kept = 0
        if shared:
            self.num_branches += 1
            branch.parent = int(np.argmax(shared))
            parent, kept = self._sequences[branch.parent], max(shared)
            own = (Origin.SAMPLED, Origin.TARGET, Origin.HISTORY)
            branch.tokens = prompt[:kept]
            branch.origin = [int(Origin.HISTORY if o in own else Origin.CONTEXT) for o in parent.origin[:kept]]
            branch.logp = [float("nan")] * kept
        branch.append(prompt[kept:], Origin.CONTEXT)
        self._mark_history(branch, kept)
        self._sequences.append(branch)
        return branch

    def _mark_history(self, branch: _Sequence, cursor: int) -> None:
        """Find earlier replies, in order, behind the shared prefix. What was rendered into other tokens stays context."""
        for words in self._spoken:
            at = _find(branch.tokens, words, cursor)
            if at is not None:
                branch.origin[at : at + len(words)] = [int(Origin.HISTORY)] * len(words)
                cursor = at + len(words)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i
    return min(len(a), len(b))


def _find(tokens: list[int], words: list[int], start: int) -> int | None:
    first, length = words[0], len(words)
    at = start
    while True:
        try:
            at = tokens.index(first, at)
        except ValueError:
            return None
        if tokens[at : at + length] == words:
            return at
        at += 1
