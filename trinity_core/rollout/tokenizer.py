"""A Hugging Face tokenizer behind the :class:`~trinity_core.protocols.Tokenizer` protocol."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trinity_core.errors import ModelError
from trinity_core.protocols import Tokenizer
from trinity_core.types import Message


class HFTokenizer(Tokenizer):
    """Tokenizer of a model folder. ``chat_template``: a file whose template replaces the folder's.

    ``eos_ids`` are the tokenizer's own end token and those of the folder's generation config; ``bos_id`` is its begin token if it
    puts one before a plain text (many have one that they never use). Raises
    :class:`ModelError` when the folder has no usable tokenizer; :meth:`render` raises it when there is no chat template.
    """

    def __init__(self, folder: str | Path, chat_template: str | None = None) -> None:
        from transformers import AutoTokenizer, PreTrainedTokenizerBase

        self.folder = Path(folder)
        try:
            self.hf: Any = AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ModelError(
                f"{self.folder}: its tokenizer cannot be loaded ({error}). The folder needs tokenizer.json and tokenizer_config.json"
            ) from error
        if chat_template is not None:
            try:
                self.hf.chat_template = Path(chat_template).expanduser().read_text(encoding="utf-8")
            except OSError as error:
                raise ModelError(
                    f"model.chat_template={chat_template}: cannot be read ({error.strerror}). Give a file with a Jinja template"
                ) from error
        self.vocab_size = len(self.hf)
        self.eos_ids = frozenset(self._eos())
        begins = self.hf.encode("a", add_special_tokens=True)[:1]
        self.bos_id = begins[0] if begins == [self.hf.bos_token_id] else None
        # some tokenizers have no words between messages and tokens
        self._plain = type(self.hf).apply_chat_template is PreTrainedTokenizerBase.apply_chat_template

    def _eos(self) -> set[int]:
        ids = {self.hf.eos_token_id} - {None}
        file = self.folder / "generation_config.json"
        if file.is_file():
            more = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
            ids |= set(more) if isinstance(more, list) else {more} - {None}
        return ids

    def encode(self, text: str) -> list[int]:
        return list(self.hf.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return str(
            self.hf.decode([int(i) for i in ids], skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)
        )

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, generate: bool = True
    ) -> list[int]:
        if not self.hf.chat_template:
            raise ModelError(
                f"{self.folder}: the tokenizer has no chat template, so messages cannot become tokens. Set model.chat_template to a file with one, or choose an instruction model"
            )
        render = partial(
            self.hf.apply_chat_template,
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] if tools else None,
            add_generation_prompt=generate,
        )
        if self._plain:
            return self.encode(render(tokenize=False))  # the same tokens in half the time
        return list(render(tokenize=True, return_dict=False))

    def digest(self) -> str:
        backend = getattr(self.hf, "backend_tokenizer", None)
        words = backend.to_str() if backend is not None else json.dumps(sorted(self.hf.get_vocab().items()))
        return hashlib.sha256(json.dumps([words, self.hf.chat_template, sorted(self.eos_ids)]).encode()).hexdigest()

    def vocabulary_digest(self) -> str:
        return hashlib.sha256(json.dumps(sorted(self.hf.get_vocab().items())).encode()).hexdigest()
