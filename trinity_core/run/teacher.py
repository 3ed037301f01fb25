"""What a teacher says of the action tokens: a model of the backend, or an engine that scores given tokens."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo.assemble import trainable
from trinity_core.algo.batch import TrainBatch
from trinity_core.errors import RunError
from trinity_core.protocols import LiveBackend, LiveEngine, Tokenizer
from trinity_core.types import Attempt, Experience, Group, Message, Origin


class BackendTeacher:
    """The backend's model *teacher*."""

    def __init__(self, backend: LiveBackend) -> None:
        self.backend = backend

    def measure(self, groups: Sequence[Group], batch: TrainBatch, outputs: frozenset[str]) -> dict[str, NDArray[Any]]:
        """``outputs`` of the teacher at every action token of ``batch``, which is :func:`assemble`'s of ``groups``."""
        theirs = in_words_of(self.backend.teacher_tokenizer(), self.backend.tokenizer, groups, batch)
        return self.backend.measure(theirs, "teacher", outputs)


class EngineTeacher:
    """An auxiliary engine (``models.teacher.engine``): log-probabilities at temperature 1, what ``score`` gives."""

    def __init__(self, engine: LiveEngine, tokenizer: Tokenizer, loop: asyncio.AbstractEventLoop) -> None:
        self.engine, self.tokenizer, self.loop = engine, tokenizer, loop
        if engine.tokenizer.vocabulary_digest() != tokenizer.vocabulary_digest():
            raise RunError(
                "models.teacher.engine: its vocabulary is not the policy's, so one token means two things. Choose a teacher of the same family"
            )

    def measure(self, groups: Sequence[Group], batch: TrainBatch, outputs: frozenset[str]) -> dict[str, NDArray[Any]]:
        """Called on the training thread; the engine answers on the run's loop."""
        theirs = in_words_of(self.engine.tokenizer, self.tokenizer, groups, batch)

        async def scores() -> list[NDArray[np.float32]]:
            rows = [theirs.tokens_T[a:b] for a, b in zip(theirs.offsets_B1, theirs.offsets_B1[1:])]
            return [scored.logp_T for scored in await asyncio.gather(*(self.engine.score(row) for row in rows))]

        found = asyncio.run_coroutine_threadsafe(scores(), self.loop).result()
        logp_N = np.concatenate(found)[theirs.action_N].astype(np.float64) if found else np.zeros(0)
        return {"logp": logp_N}


Teacher = BackendTeacher | EngineTeacher
_Span = tuple[slice, Sequence[Message]]


def in_words_of(theirs: Tokenizer, ours: Tokenizer, groups: Sequence[Group], batch: TrainBatch) -> TrainBatch:
    """``batch`` as the teacher reads it. With one chat template for both that is the batch itself. Else each call becomes a
    sequence of its own: the conversation before it through the teacher's template, then the very tokens that were sampled.
    The action tokens are the same, in the same order."""
    if theirs.digest() == ours.digest():
        return batch
    rows, tokens, lengths, first, actions = [], [], [], 0, []
    for row, (experience, spans) in enumerate(_experiences(groups, ours)):
        begin, end = np.searchsorted(batch.row_N, [row, row + 1])
        action_T = batch.action_N[begin:end] - batch.offsets_B1[row]
        for span, before in spans:
            inside_T = action_T[(action_T >= span.start) & (action_T < span.stop)]
            if not len(inside_T):
                continue
            context = theirs.render(before, generate=True)
            tokens.append(np.concatenate([context, experience.tokens_T[span.start : span.stop]]).astype(np.int32))
            actions.append(inside_T - span.start + len(context) + first)
            rows += [len(lengths)] * len(inside_T)
            lengths.append(len(tokens[-1]))
            first += lengths[-1]
    if len(rows) != batch.num_actions:
        raise RunError(
            f"teacher: {batch.num_actions - len(rows)} of {batch.num_actions} action tokens lie outside any reply of their conversation, so "
            "its own chat template cannot be put around them. Set teacher.chat_template to the policy's"
        )
    size = len(lengths)
    return dataclasses.replace(
        batch,
        tokens_T=np.concatenate(tokens),
        offsets_B1=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        action_N=np.concatenate(actions).astype(np.int64),
        row_N=np.array(rows, dtype=np.int64),
        group_B=np.zeros(size, np.int64),
        attempt_B=np.arange(size),
        population_B=np.ones(size, np.uint8),
        attempt_key_B=np.zeros(size, np.uint64),
        reward_B=np.full(size, np.nan),
        pairs_P2=np.zeros((0, 2), np.int64),
        extras={},
    )


def _experiences(groups: Sequence[Group], ours: Tokenizer) -> Iterator[tuple[Experience, list[_Span]]]:
    """Sequence of each row of the batch, in its order, and the replies in it with the messages before them."""
    for group in groups:
        for attempt in group.attempts:
            if trainable(attempt):
                spans = _spans(attempt, ours)
                yield from (pair for pair in zip(attempt.experiences, spans) if len(_actions(pair[0])))


def _actions(experience: Experience) -> NDArray[np.intp]:
    """Action tokens that the batch has: a sampled one without a log-probability is none."""
    found = experience.action_T
    return found[~((experience.origin_T[found] == Origin.SAMPLED) & np.isnan(experience.logp_T[found]))]


def _spans(attempt: Attempt, ours: Tokenizer) -> list[list[_Span]]:
    """Of each experience: where each reply lies in it, and the messages before it. The policy's replies are the last;
    others, of examples in a prompt say, may stand before them. A call whose words no message has is in no span."""
    messages = attempt.messages
    replies = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    calls = [(call, n) for n, one in enumerate(attempt.experiences) for call in one.calls if call.stop > call.start]
    found: list[list[_Span]] = [[] for _ in attempt.experiences]
    if any(one.calls for one in attempt.experiences):
        for call, number in sorted(calls, key=lambda one: -one[0].step):
            said = ours.decode(attempt.experiences[number].tokens_T[call.start : call.stop], skip_special=True).strip()
            while replies:
                message = messages[place := replies.pop()]
                if message.get("tool_calls") or str(message.get("content") or "").strip() == said:
                    found[number].append((slice(call.start, call.stop), messages[:place]))
                    break
        return [sorted(spans, key=lambda span: span[0].start) for spans in found]
    for number in range(len(found) - 1, -1, -1):  # given: each reply is a run of targets, over all experiences in order
        action_T = attempt.experiences[number].action_T
        edges = np.flatnonzero(np.diff(action_T) > 1) + 1
        runs = [slice(int(run[0]), int(run[-1]) + 1) for run in np.split(action_T, edges) if len(run)]
        found[number] = [(run, messages[: replies.pop()]) for run in reversed(runs) if replies][::-1]
    return found
