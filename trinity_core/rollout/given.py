"""Data that was not sampled: what a task gives becomes attempts, in the tokens that the policy would have sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from trinity_core.errors import DataError
from trinity_core.rollout.recorder import Recorder
from trinity_core.rollout.renderer import Renderer
from trinity_core.rollout.turns import Turns
from trinity_core.types import Attempt, Experience, Group, Message, Origin, Role, Task

ROLES: tuple[Role, ...] = ("expert", "chosen", "rejected")
"""Roles of attempts that a task brings along, in the order they take in their group."""


def record(group: Group, renderer: Renderer) -> None:
    """Fill ``group`` with what its task gives: experts, then the chosen and the rejected one, which are a pair.

    Their tokens are *targets*: no call, no log-probability, no score. ``algorithm.group_size`` is for what is played. Raises
    :class:`~trinity_core.errors.DataError` with the role and what is wrong with it.
    """
    task = group.task
    check_roles(task)
    for role in ROLES:
        for continuation in continuations(task.given.get(role)):
            try:
                attempt = attempt_of(task, role, continuation, renderer)
            except DataError as error:
                raise DataError(f"given[{role!r}]: {error}") from error
            attempt.index = len(group.attempts)
            group.attempts.append(attempt)
    number = {attempt.role: attempt.index for attempt in group.attempts}
    if "chosen" in number:
        group.pairs.append((number["chosen"], number["rejected"]))


def check_roles(task: Task) -> None:
    """Refuse roles that nobody learns from, and half a pair."""
    if unknown := sorted(set(task.given) - set(ROLES)):
        raise DataError(f"given[{unknown[0]!r}]: no such role. Roles: {', '.join(ROLES)}")
    counts = {role: len(continuations(task.given.get(role))) for role in ROLES}
    if not any(counts.values()):
        raise DataError("given: nothing is in it. Leave it empty for a task to be played")
    if counts["chosen"] != counts["rejected"] or counts["chosen"] > 1:
        raise DataError(
            f"given: {counts['chosen']} chosen and {counts['rejected']} rejected. A task gives one of each, or none; several "
            "pairs are several tasks"
        )


def continuations(value: Any) -> list[Any]:
    """What one role gives, one by one: nothing, a text, messages, or a list of these."""
    if value is None:
        return []
    if isinstance(value, str) or (isinstance(value, Sequence) and value and isinstance(value[0], Mapping)):
        return [value]
    if isinstance(value, Sequence) and value and all(isinstance(one, str | Sequence) for one in value):
        return list(value)
    raise DataError(f"given: expected messages, a text, or a list of these, got {str(value)[:80]!r}")


def attempt_of(task: Task, role: Role, continuation: str | Sequence[Message], renderer: Renderer) -> Attempt:
    """One continuation of ``task`` as an attempt. A text has no template; messages go on from the task's."""
    if isinstance(continuation, str):
        if task.messages:
            raise DataError(
                "a text stands alone, and the task has messages before it. Give messages: "
                '[{"role": "assistant", "content": TEXT}]'
            )
        return Attempt([_document(continuation, renderer)], role, continuation, task=task)
    experiences, messages = _conversation(task, continuation, renderer)
    if role != "expert" and len(experiences) > 1:
        raise DataError(
            f"the chat template does not keep the tokens of earlier turns, so its {len(experiences)} turns are as many "
            "sequences, and a pair compares two. Give pairs one turn each"
        )
    return Attempt(experiences, role, str(messages[-1].get("content") or ""), messages, task=task)


def _document(text: str, renderer: Renderer) -> Experience:
    """All of a text is target but its first token, which nothing predicts."""
    tokens = renderer.document(text)
    if len(tokens) < 2:
        raise DataError(
            f"{text[:40]!r} is {len(tokens)} token(s): the first is predicted by nothing, so none is learned"
        )
    origin_T = np.full(len(tokens), Origin.TARGET, dtype=np.uint8)
    origin_T[0] = Origin.CONTEXT
    return Experience(np.array(tokens, dtype=np.int32), origin_T, np.full(len(tokens), np.nan, dtype=np.float32))


def _conversation(
    task: Task, continuation: Sequence[Message], renderer: Renderer
) -> tuple[list[Experience], list[Message]]:
    """The assistant's turns of a continuation, each behind the prompt that the policy would see."""
    said = [dict(cast("Message", message)) for message in continuation]
    if said[-1].get("role") != "assistant":
        raise DataError(f"it ends with a message of {said[-1].get('role')!r}. The last one must be the assistant's")
    tools = task.data.get("tools")
    messages: list[Message] = [dict(message) for message in task.messages]
    turns, recorder = Turns(renderer), Recorder()
    for message in said:
        if message.get("role") == "assistant":
            _check_reply(message, bool(messages))
            prompt, rendered = turns.prompt(list(messages), tools)
            tokens = renderer.write(messages, message, prompt, tools)
            recorder.teach(prompt, tokens)
            turns.add(list(messages), rendered, [*prompt, *tokens], message, tools)
        messages.append(message)
    return recorder.experiences(), messages


def _check_reply(message: Message, has_prompt: bool) -> None:
    if not has_prompt:
        raise DataError("the assistant speaks first, and nothing predicts that. The task needs a message before it")
    if not isinstance(message.get("content") or "", str):
        raise DataError(f"content must be text, got a {type(message['content']).__name__}")
    if not message.get("content") and not message.get("tool_calls"):
        raise DataError("an assistant's message is empty: it would teach silence")
