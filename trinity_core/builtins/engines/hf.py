"""The engine ``hf``: transformers in this process; a wave of requests is one batch."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trinity_core.errors import ConfigError
from trinity_core.protocols import Engine, RunContext

if TYPE_CHECKING:
    from trinity_core.builtins.engines.hf_live import LiveHF


@dataclass(frozen=True)
class HF(Engine):
    """Samples from a Hugging Face model: the trainer's own module where the two take turns, else a copy of its weights, or of
    its adapters alone beside a base of its own.

    Equal prompts of a wave are computed once and their cache is repeated for the attempts. No cache outlives a wave, so
    none can outlive the weights it came from.
    """

    path: str | None = None
    """Model of its own, in the forms of ``model.path``, for an auxiliary model; null: the policy's."""
    device: str = "auto"
    """*auto* (CUDA where there is one), *cpu*, *cuda* or *cuda:N*: where a copy of the weights lives."""
    fused: bool = True
    """On the CPU, compute the steps of Llama-like models in fewer and larger products (LoRA and other families go through the
    module as always, and a log line says so). False: everything through the module."""

    accepts: ClassVar[frozenset[str]] = frozenset({"module", "tensors", "folder", "adapter"})
    capabilities: ClassVar[frozenset[str]] = frozenset({"score", "waves", "top_p", "top_k", "stop", "deterministic"})

    def open(self, run: RunContext) -> LiveHF:
        missing = [name for name in ("torch", "transformers", "safetensors") if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(f"engine hf needs {', '.join(missing)}. Run `pip install 'trinity-core[local]'`")
        from trinity_core.builtins.engines.hf_live import LiveHF

        return LiveHF.open(self, run)
