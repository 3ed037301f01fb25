"""From messages to tokens: the only place that knows the chat template. Engines see tokens."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from trinity_core.errors import DataError, ModelError
from trinity_core.protocols import Tokenizer
from trinity_core.types import Message

_QUESTION: Message = {"role": "user", "content": "What is 2 + 3?"}
_GO_ON: Message = {"role": "user", "content": "And twice that?"}
_PROBES = ("5", "<think>\n2 and 3\n</think>\n\n5")
"""Replies of the start-up check: many templates keep plain words and drop the thoughts of earlier turns."""
REMEMBERED = 256
"""Conversations whose tokens are kept."""


class Renderer:
    """The chat template of the policy.

    A conversation that goes on is not rendered anew: :meth:`extend` keeps the tokens that were sampled and adds what
    the template puts behind them (the *bridge*: end of turn, the new messages, the opened turn). So what is trained is
    what was sampled, and ids are never decoded and encoded again.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._rendered: OrderedDict[str, list[int]] = OrderedDict()

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        generate: bool = True,
    ) -> list[int]:
        """Tokens of the whole conversation; ``generate`` opens the assistant's turn.

        The attempts of a group begin with the same words, which are rendered once. Raises
        :class:`~trinity_core.errors.ModelError` if the tokenizer has no chat template or refuses the messages.
        """
        key = _words(messages, tools, generate)
        if key in self._rendered:
            self._rendered.move_to_end(key)
            return list(self._rendered[key])
        try:
            tokens = list(self.tokenizer.render(messages, tools=tools, generate=generate))
        except ModelError:
            raise
        except Exception as error:
            roles = ", ".join(str(m.get("role", "?")) for m in messages)
            if "chat_template" in str(error) or "chat template" in str(error):
                raise ModelError(
                    "model.chat_template: the tokenizer has no chat template. Choose an instruct model, or set "
                    "model.chat_template to a file with one"
                ) from error
            raise ModelError(
                f"model.chat_template: the template refused a conversation with the roles {roles}: {error}"
            ) from error
        if not tokens:
            raise ModelError("model.chat_template: the template rendered no token")
        if key:
            self._rendered[key] = list(tokens)
            if len(self._rendered) > REMEMBERED:
                self._rendered.popitem(last=False)
        return tokens

    def keeps_prefix(self) -> bool:
        """Start-up check: does the rendering of a longer conversation extend the tokens of the shorter one and its reply?

        Where it does not (a template that drops earlier reasoning, say), every turn begins a new experience. That is
        correct and slower; the run's plan says so.
        """
        shorter = self.render([_QUESTION])
        end = sorted(self.tokenizer.eos_ids)[:1]
        for words in _PROBES:
            reply: Message = {"role": "assistant", "content": words}
            played = [*shorter, *self.tokenizer.encode(words), *end]
            if self.extend([_QUESTION], shorter, played, reply, [_QUESTION, reply, _GO_ON]) is None:
                return False
        return True

    def extend(
        self,
        earlier: Sequence[Message],
        rendered: Sequence[int],
        played: Sequence[int],
        reply: Message,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[list[int], list[int]] | None:
        """Tokens of ``messages``, which go on from ``[*earlier, reply]``, keeping what was played.

        ``rendered`` are the template's tokens of ``earlier``; ``played`` the recorded prompt of that call with the
        sampled reply behind it. Returns ``(prompt, rendering)``: what to send, and the template's own tokens of
        ``messages``. ``None`` if the template does not keep the prefix here, so that the conversation must branch.
        """
        full = self.render(messages, tools)
        start = len(rendered)
        if full[:start] != list(rendered):
            return None
        ends = self.tokenizer.eos_ids
        if played[-1] in ends and full[: len(played)] == list(played):
            return full, full  # the template's own tokens, whatever it made of the reply's fields
        stop = next((i for i in range(start, len(full)) if full[i] in ends), None)
        if stop is None:
            return None
        # The words in between must be the reply's: a template that strips or rewrites them does not keep the prefix.
        if self.tokenizer.decode(full[start:stop]).strip() != str(reply.get("content") or "").strip():
            return None
        # A reply that ended by itself carries its end; one that was cut gets the template's.
        bridge = full[stop + 1 :] if played[-1] in ends else full[stop:]
        return [*played, *bridge], full

    @cached_property
    def end(self) -> int:
        """The token with which the template closes an assistant's turn: the last thing a reply that is learned must say.

        Where the template closes with no token that ends a reply, the tokenizer's own end: what engines stop at.
        """
        ends = self.tokenizer.eos_ids
        if not ends:
            raise ModelError(
                "model.path: its tokenizer has no token that ends a reply, so no reply can be taught to end. Set eos_token in "
                "tokenizer_config.json, or eos_token_id in generation_config.json"
            )
        closed = self.render([_QUESTION, {"role": "assistant", "content": _PROBES[0]}], generate=False)
        return next((token for token in reversed(closed) if token in ends), min(ends))

    def write(
        self,
        messages: Sequence[Message],
        reply: Message,
        prompt: Sequence[int],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """The tokens of ``reply`` as the policy would have sampled them behind ``prompt``, with the end of the turn.

        ``prompt`` are the tokens sent for ``messages``. Words are encoded; calls of tools are written by the template, which
        alone knows their form. Raises :class:`~trinity_core.errors.DataError` where it writes them elsewhere.
        """
        if not reply.get("tool_calls"):
            return [*self.tokenizer.encode(str(reply.get("content") or "")), self.end]
        opened, full = self.render(messages, tools), self.render([*messages, reply], tools, generate=False)
        if full[: len(opened)] != opened:
            raise DataError(
                "the chat template writes a message with tool_calls elsewhere than behind the turn it opens, so its tokens cannot "
                "be told from the prompt's. Write the call into the content, as the model is to say it"
            )
        words = full[len(opened) :]
        stop = next((at for at, token in enumerate(words) if token in self.tokenizer.eos_ids), len(words))
        return [*words[:stop], self.end]

    def document(self, text: str) -> list[int]:
        """The tokens of a text without any template, behind the token that begins a text where the tokenizer has one."""
        tokens, begin = self.tokenizer.encode(text), self.tokenizer.bos_id
        return tokens if begin is None or tokens[:1] == [begin] else [begin, *tokens]

    def text(self, tokens: Sequence[int]) -> str:
        """The words of sampled tokens, without special tokens."""
        return self.tokenizer.decode(tokens, skip_special=True)


def _words(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, generate: bool) -> str:
    """The same text for the same conversation; "" where it holds more than plain data, which might change unseen."""
    try:
        return json.dumps([list(messages), tools, generate], ensure_ascii=False)
    except (TypeError, ValueError):
        return ""
