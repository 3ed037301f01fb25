"""The backend ``local``: transformers and peft in this process, on one GPU or on the CPU."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trinity_core.config.schema import RunConfig
from trinity_core.errors import ConfigError
from trinity_core.protocols import Backend, RunContext

if TYPE_CHECKING:
    from trinity_core.builtins.backends.local.live import LiveLocal


@dataclass(frozen=True)
class Local(Backend):
    """Trains a Hugging Face model, all of it or low-rank adapters, with AdamW.

    Weights are float32, matrix products bfloat16 where the hardware has it (``model.dtype``). Whatever several
    sequences begin with is computed once. The reference model is a second, frozen copy that is loaded
    when it is first asked for; with adapters it is the model without them. The critic (``critic=value_head``) is the same
    model with weights of its own, or adapters of its own on a base of its own, and a linear head of one number. The teacher (``teacher.path``) is a frozen model with
    the policy's vocabulary; of its distribution only last hidden states are kept, and each chunk of the head turns its part
    into logits.
    """

    micro_tokens: int = 3072
    """Tokens of one micro-batch, shared prefixes counted once. Lower it if memory runs out."""
    share_prefix: bool = True
    """Compute once what several sequences begin with: a system prompt, a group's prompt, the first words of answers that begin
    alike. False: one padded row per sequence. The gradient is the same."""
    skip_inert: bool = True
    """Leave out sequences of which every term of the loss is inert, as those of a group without spread are in GRPO; they stay in
    all denominators. The gradient is the same; statistics are over what was computed."""
    keep_memory: bool = True
    """Keep the memory that a step frees for the next one, on the CPU. False: give it back to the system, which must clear it again
    each time."""
    gradient_checkpointing: bool = False
    """Recompute each layer in backward: a third more time for a fraction of the memory."""
    device: str = "auto"
    """*auto* (CUDA where there is one), *cpu*, *cuda* or *cuda:N*."""

    provides: ClassVar[frozenset[str]] = frozenset(
        {
            "old_logp",
            "ref_logp",
            "sampler_logp",
            "teacher_logp",
            "teacher_logits",
            "entropy",
            "entropy_grad",
            "value",
            "vocab",
        }
    )

    def refuse(self, config: RunConfig) -> str | None:
        loss = config.part("loss")
        if loss is not None and "value" in loss.needs():
            return f"backend local trains the critic by itself, and {type(loss).__name__} has the value among its own terms. Choose a loss without one: the kernel adds the critic's"
        if self.micro_tokens < 1:
            return f"backend.micro_tokens is {self.micro_tokens}; it is a number of tokens, at least 1"
        lora, engine = config.model.lora, config.part("engine")
        if lora is not None and lora.quantize is not None:
            if config.model.dtype == "float64":
                return "model.lora.quantize=nf4 has products in float32 or bfloat16. Set model.dtype to one of them"
            if engine is not None and "adapter" not in type(engine).accepts:
                return f"model.lora.quantize=nf4 is sampled from unmerged (merging rounds, and the policy would be another), and engine {config.parts['engine'].name!r} takes no adapters. Write engine=hf, or model.lora.quantize=null"
        if self.gradient_checkpointing and config.model.dtype == "float64":
            return "backend.gradient_checkpointing does not go with model.dtype=float64, which is for small models. Leave one of them"
        return None

    def open(self, run: RunContext) -> LiveLocal:
        missing = [
            name for name in ("torch", "transformers", "peft", "safetensors") if importlib.util.find_spec(name) is None
        ]
        if missing:
            raise ConfigError(f"backend local needs {', '.join(missing)}. Run `pip install 'trinity-core[local]'`")
        from trinity_core.builtins.backends.local.live import LiveLocal

        return LiveLocal.open(self, run)
