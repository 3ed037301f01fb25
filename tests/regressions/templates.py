"""Chat templates with the habits of real ones, over one token per character."""

from __future__ import annotations

from trinity_core.builtins.fake.tokenizer import SPECIAL, CharTokenizer

END, SYSTEM, USER, ASSISTANT, TOOL = range(len(SPECIAL))
ROLES = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}


class Newline(CharTokenizer):
    """A newline behind each end of a turn, as ChatML has it: ``<|end|>\\n``."""

    def render(self, messages, *, tools=None, generate=True):
        tokens = []
        for message in messages:
            tokens += [ROLES[message["role"]], *self.encode(self.content(messages, message)), END, *self.encode("\n")]
        return [*tokens, ASSISTANT] if generate else tokens

    def content(self, messages, message):
        return message["content"]


class DropsThoughts(Newline):
    """Strips ``<think>…</think>`` of the turns before the last question."""

    def content(self, messages, message):
        text = message["content"]
        return text.rpartition("</think>")[2] if message["role"] == "assistant" else text


class Begins(Newline):
    """Opens the text with one begin-of-text token (here ``<|system|>``)."""

    def render(self, messages, *, tools=None, generate=True):
        return [SYSTEM, *super().render(messages, tools=tools, generate=generate)]


class NoTemplate(CharTokenizer):
    """A base model's tokenizer."""

    def render(self, messages, *, tools=None, generate=True):
        raise ValueError("Cannot use chat template functions because tokenizer.chat_template is not set")
