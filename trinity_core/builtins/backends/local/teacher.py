"""The frozen model that a policy learns from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trinity_core.builtins.models.causal import CausalLM
from trinity_core.builtins.models.probe import why_not_shared
from trinity_core.builtins.models.resolve import resolve_model
from trinity_core.config import schema
from trinity_core.errors import ModelError
from trinity_core.rollout.tokenizer import HFTokenizer

if TYPE_CHECKING:
    from trinity_core.builtins.backends.local import Local


class LocalTeacher:
    """Folder and tokenizer are looked at when the run opens, so that a wrong ``teacher.path`` fails before anything is
    played; the weights are loaded when they are first measured."""

    def __init__(self, config: schema.Teacher, policy: HFTokenizer, backend: Local) -> None:
        assert config.path is not None
        self.config, self.backend = config, backend
        self.folder = resolve_model(config.path, "teacher.path")
        if config.chat_template is not None and not Path(config.chat_template).expanduser().is_file():
            raise ModelError(
                f"teacher.chat_template={config.chat_template}: there is no such file. Give a file with a Jinja template"
            )
        self.tokenizer = HFTokenizer(self.folder, config.chat_template)
        if self.tokenizer.vocabulary_digest() != policy.vocabulary_digest():
            raise ModelError(
                f"teacher.path={config.path}: its tokenizer has {self.tokenizer.vocab_size} tokens and the policy's, of "
                f"{policy.folder}, {policy.vocab_size}, or the same id means two things. Choose a teacher with the policy's vocabulary"
            )
        self._model: CausalLM | None = None

    def model(self) -> CausalLM:
        """The weights."""
        if self._model is None:
            assert self.config.path is not None
            model = schema.Model(self.config.path, dtype=self.config.dtype)
            self._model = CausalLM.frozen(self.folder, model, device=self.backend.device)
            # it may see its tokens by other rules than the policy
            self._model.shares_prefixes = self.backend.share_prefix and why_not_shared(self._model) is None
        return self._model

    def covers(self, policy: CausalLM) -> None:
        """Refuse a head that has no logit for some row of the policy's: their distributions could not be compared."""
        mine, theirs = self.model().head.out_features, policy.head.out_features
        if mine < theirs:
            raise ModelError(
                f"teacher.path={self.config.path}: its head has {mine} rows and the policy's {theirs}, so its whole distribution cannot be "
                "compared. Choose a teacher with as many, or an algorithm that needs teacher_logp alone"
            )

    def close(self) -> None:
        self._model = None
