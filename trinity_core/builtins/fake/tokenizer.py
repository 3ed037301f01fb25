"""One token per printable character."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trinity_core.errors import DataError
from trinity_core.protocols import Tokenizer
from trinity_core.types import Message

SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
VOCABULARY = (*SPECIAL, *CHARACTERS)
END = 0
"""Ends every message, also a reply."""

_ROLES = {name[2:-2]: token for token, name in enumerate(SPECIAL) if token != END}
_CHARACTER = {character: len(SPECIAL) + n for n, character in enumerate(CHARACTERS)}


class CharTokenizer(Tokenizer):
    """Printable ASCII and newline, one token each; anything else becomes ``?``.

    The template is ``<|role|>text<|end|>`` for each message and ``<|assistant|>`` to open a reply, so that a conversation
    that goes on starts with the exact tokens it had before. Text never becomes a special token.

    >>> t = CharTokenizer()
    >>> t.decode(t.encode("2+2=é"))
    '2+2=?'
    >>> t.decode(t.render([{"role": "user", "content": "hi"}]), skip_special=False)
    '<|user|>hi<|end|><|assistant|>'
    """

    vocab_size = len(VOCABULARY)
    eos_ids = frozenset({END})

    def encode(self, text: str) -> list[int]:
        unknown = _CHARACTER["?"]
        return [_CHARACTER.get(character, unknown) for character in text]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return "".join(VOCABULARY[token] for token in ids if not (skip_special and token < len(SPECIAL)))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generate: bool = True,
    ) -> list[int]:
        if tools:
            messages = [{"role": "system", "content": "tools: " + json.dumps(list(tools), sort_keys=True)}, *messages]
        tokens: list[int] = []
        for message in messages:
            tokens += [self._role(message), *self.encode(_text(message)), END]
        return [*tokens, _ROLES["assistant"]] if generate else tokens

    def digest(self) -> str:
        return hashlib.sha256("\x00".join(("fake template 1", *VOCABULARY)).encode()).hexdigest()

    @staticmethod
    def _role(message: Message) -> int:
        role = message.get("role")
        if role not in _ROLES:
            raise DataError(f"message role {role!r}: the template of model.path=fake knows {', '.join(_ROLES)}")
        return _ROLES[role]


def _text(message: Message) -> str:
    text = message.get("content") or ""
    if not isinstance(text, str):
        raise DataError(f"message content: model.path=fake reads text, got {type(text).__name__}")
    calls = message.get("tool_calls")
    return text + json.dumps(calls, sort_keys=True) if calls else text
