"""A conversation turn by turn: each prompt goes on from what was played before, as far as the template allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trinity_core.rollout.renderer import Renderer
from trinity_core.types import Message


@dataclass
class _Turn:
    """A reply as the renderer needs it to go on from there."""

    messages: list[Message]
    rendered: list[int]
    played: list[int]
    reply: Message
    tools: Any


class Turns:
    """The turns of one attempt so far."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._turns: list[_Turn] = []

    def prompt(self, messages: list[Message], tools: Any = None) -> tuple[list[int], list[int]]:
        """(tokens to send, the template's own tokens): going on from the longest earlier turn that allows it."""
        for turn in sorted(self._turns, key=lambda t: len(t.messages), reverse=True):
            head = len(turn.messages)
            if turn.tools == tools and messages[: head + 1] == [*turn.messages, turn.reply]:
                extended = self._renderer.extend(turn.messages, turn.rendered, turn.played, turn.reply, messages, tools)
                if extended is not None:
                    return extended
        rendered = self._renderer.render(messages, tools)
        return rendered, rendered

    def add(
        self, messages: list[Message], rendered: list[int], played: list[int], reply: Message, tools: Any = None
    ) -> None:
        """``reply`` was said behind ``messages``: ``rendered`` are the template's tokens of those, ``played`` the prompt that
        was sent and the reply's tokens."""
        self._turns.append(_Turn(messages, rendered, played, reply, tools))
