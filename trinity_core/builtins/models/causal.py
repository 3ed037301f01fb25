"""A transformers causal language model as trainer and engine see it: hidden states in, one head, one numeric recipe.

Weights are float32 (float64 for float64) and matrix products run in the compute dtype under autocast. Trainer and engine
use the same object or the same recipe, so their log-probabilities differ by the order of summation only.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trinity_core.builtins.models import quantized
from trinity_core.builtins.models.attention import place, register
from trinity_core.builtins.models.kernels import keep_few
from trinity_core.builtins.models.lean import lean
from trinity_core.builtins.models.packing import Block
from trinity_core.config.schema import Lora, Model
from trinity_core.errors import ModelError

keep_few()
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
SCALED_HEADS = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")
"""Config entries of families whose logits are not a plain projection of the last hidden state."""


def pick_device(device: str) -> torch.device:
    """``auto``: CUDA where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"device={device}: {str(error).splitlines()[0]}. Use auto, cpu or cuda") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device={device}: this torch sees no CUDA device. Use device=cpu or auto")
    return found


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Compute dtype. ``auto``: bfloat16 where the hardware multiplies it, else float32."""
    if dtype != "auto":
        return DTYPES[dtype]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32


class CausalLM:
    """One set of weights. ``module`` is the transformers model (with adapters inside, if any)."""

    def __init__(self, module: Any, folder: Path, device: torch.device, compute: torch.dtype, peft: Any = None) -> None:
        self.module = module
        self.folder = folder
        self.device = device
        self.compute = compute
        self.peft = peft
        self.shares_prefixes = True
        """Whether a prefix of several sequences is computed once; for who has asked the model (:mod:`.probe`) to say."""
        self.body = module.base_model
        self.head = module.get_output_embeddings()
        self._cache_word = "cache" if "cache" in inspect.signature(self.body.forward).parameters else "past_key_values"

    @classmethod
    def load(
        cls, folder: Path, model: Model, *, device: str = "auto", lora: Lora | None = None, empty: bool = False
    ) -> CausalLM:
        """Load the model folder. Dropout is off in every pass. ``empty``: adapters without values, which are still to be
        assigned; nothing random is drawn. Raises :class:`ModelError` where the folder cannot be used."""
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM

        place = pick_device(device)
        compute = pick_dtype(model.dtype, place)
        master = torch.float64 if compute == torch.float64 else torch.float32
        narrower = quantized.nf4(compute, place) if lora is not None and lora.quantize is not None else {}
        with quiet():
            try:
                module = AutoModelForCausalLM.from_pretrained(
                    folder, dtype=master, attn_implementation=register(), local_files_only=True, **narrower
                )
            except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
                raise ModelError(
                    f"{folder}: the model cannot be loaded ({error}). Is it a causal language model that transformers knows?"
                ) from error
        refuse_family(module, folder)
        if narrower:
            quantized.keep_layout(module)
        else:
            module.to(place)
        silence_dropout(module)
        lean(module)
        module.eval().requires_grad_(lora is None)
        peft = add_lora(module, lora, folder, empty=empty) if lora is not None else None
        model_ = cls(module, folder, place, compute, peft)
        if peft is not None:
            model_.narrow()  # the base is frozen
        return model_

    @classmethod
    def frozen(cls, folder: Path, model: Model, *, device: str = "auto") -> CausalLM:
        """The model folder as it is, never trained: half the memory where the compute dtype is narrow."""
        loaded = cls.load(folder, model, device=device)
        loaded.module.requires_grad_(False)
        loaded.narrow()
        return loaded

    # computing

    @contextlib.contextmanager
    def recipe(self) -> Iterator[None]:
        """Autocast to the compute dtype where it is narrower than the weights; float64 all the way where it is wider."""
        if self.compute == torch.float64:
            with KeepFloat64():
                yield
            return
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.compute == torch.bfloat16):
            yield

    def hidden(self, ids_RL: Tensor, position_RL: Tensor, mask: Tensor | None, cache: Any = None) -> Tensor:
        """Last hidden states [R, L, H]. ``mask``: [R, keys] of real tokens, or [R, 1, L, keys] of who sees whom."""
        more = {self._cache_word: cache} if cache is not None else {}
        out = self.body(
            input_ids=ids_RL, position_ids=position_RL, attention_mask=mask, use_cache=cache is not None, **more
        )
        return out.last_hidden_state  # type: ignore[no-any-return]

    def hidden_of_blocks(self, ids_T: Tensor, position_T: Tensor, blocks: Sequence[Block], cache: Any = None) -> Tensor:
        """Last hidden states [T, H] of flat cells, each block of which sees its own keys (:mod:`.packing`)."""
        wide = torch.float64 if self.compute == torch.float64 else torch.float32
        nothing = torch.empty(1, 1, 1, 1, device=self.device)  # a mask the library would make is not needed
        more = {self._cache_word: cache} if cache is not None else {}
        out = self.body(
            input_ids=ids_T[None],
            position_ids=position_T[None],
            attention_mask=nothing,
            use_cache=cache is not None,
            blocks=place(blocks, self.device, wide),
            **more,
        )
        return out.last_hidden_state[0]  # type: ignore[no-any-return]

    def logits(self, hidden_CH: Tensor) -> Tensor:
        """Logits [C, V] in at least float32."""
        logits_CV: Tensor = self.head(hidden_CH)
        return logits_CV if logits_CV.dtype == torch.float64 else logits_CV.float()

    # weights

    @property
    def quantized(self) -> bool:
        """Whether the base is in 4 bits."""
        return any(not p.is_floating_point() for p in self.module.parameters())

    def trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    @contextlib.contextmanager
    def base(self) -> Iterator[None]:
        """The model without its adapters."""
        with self.peft.disable_adapter() if self.peft is not None else contextlib.nullcontext():
            yield

    @torch.no_grad()
    def sampling_tensors(self) -> dict[str, Tensor]:
        """A copy of the weights as an engine needs them, adapters merged, under the names of the plain model.

        Matrices of linear layers are in the compute dtype, all else in the master dtype: autocast would make the same
        of them, so an engine with the copy computes bit for bit what it would with the shared module.
        """
        narrow = self._narrow()
        deltas = self.deltas()
        copies = {}
        for name, parameter in self.module.named_parameters():
            if "lora_" in name:
                continue
            name = name.replace(".base_layer.", ".")
            value = parameter + deltas[name] if name in deltas else parameter
            copies[name] = value.detach().to(self.compute if id(parameter) in narrow else value.dtype, copy=True)
        return copies

    def deltas(self) -> dict[str, Tensor]:
        """By plain name: what each adapter adds to its matrix."""
        return {
            f"{name}.weight": layer.get_delta_weight("default").detach()
            for name, layer in self.module.named_modules()
            if hasattr(layer, "get_delta_weight") and "default" in getattr(layer, "lora_A", ())
        }

    def widened(self) -> dict[str, Tensor]:
        """By plain name: each 4-bit matrix of the base, as the float32 that it stands for."""
        layers = self.module.named_modules()
        return {
            f"{name.removesuffix('.base_layer')}.weight": quantized.widen(layer.weight)
            for name, layer in layers
            if isinstance(layer, nn.Linear) and hasattr(layer.weight, "quant_state")
        }

    def _narrow(self) -> set[int]:
        """Parameters that autocast would narrow at every use and nothing else reads: matrices of linear layers."""
        matrices = {id(m.weight) for m in self.module.modules() if isinstance(m, nn.Linear)}
        matrices -= {id(p) for p in self.module.parameters() if not p.is_floating_point()}  # in 4 bits already
        return matrices - {id(m.weight) for m in self.module.modules() if isinstance(m, nn.Embedding)}  # a tied head

    def narrow(self) -> None:
        """Keep frozen matrices in the compute dtype: the same numbers, half the memory, no cast at every use."""
        narrow = self._narrow()
        for name, parameter in self.module.named_parameters():
            if id(parameter) in narrow and "lora_" not in name:
                parameter.data = parameter.data.to(self.compute)

    @torch.no_grad()
    def assign(self, tensors: Mapping[str, Tensor], origin: str) -> None:
        """Take these tensors, in the dtype they come in, for the weights. Names and shapes must be the model's own."""
        mine = dict(self.module.named_parameters())
        wrong = sorted(set(mine) ^ set(tensors)) or [n for n, t in tensors.items() if t.shape != mine[n].shape]
        if wrong:
            raise ModelError(
                f"{origin}: its weights are not those of {self.folder}: {', '.join(wrong[:3])}{' …' if len(wrong) > 3 else ''}. Trainer and engine need the same model.path"
            )
        for name, tensor in tensors.items():
            mine[name].data = tensor.to(self.device)


class KeepFloat64(TorchFunctionMode):
    """Norms and attention of transformers compute in float32 whatever comes in. Here float64 stays float64."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        narrows = func is Tensor.float or (func is Tensor.to and torch.float32 in (*args[1:], *kwargs.values()))
        if narrows and args[0].dtype == torch.float64:
            return args[0]
        return func(*args, **kwargs)


def refuse_family(module: Any, folder: Path) -> None:
    """Families whose logits need more than their head."""
    found = [name for name in SCALED_HEADS if getattr(module.config, name, None) not in (None, 1, 1.0)]
    if found or not isinstance(module.get_output_embeddings(), nn.Linear):
        raise ModelError(
            f"{folder}: {type(module).__name__} changes its logits after the head ({', '.join(found) or 'no linear head'}), which local and hf do not know yet. Choose a Llama-like model"
        )
    rope = (getattr(module.config, "rope_parameters", None) or {}).get("rope_type")
    if rope in ("longrope", "dynamic"):
        raise ModelError(
            f"{folder}: its positions are rotated by the length of the longest sequence beside them (rope_type {rope}), so that a sequence's "
            "numbers depend on its company. Choose a model with another rope_type, or set it to default in config.json and keep to the original length"
        )


def silence_dropout(module: nn.Module) -> None:
    """Dropout 0 in both passes, also where attention reads it from a number."""
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        for name in ("attention_dropout", "attn_pdrop"):
            if isinstance(getattr(layer, name, None), float):
                setattr(layer, name, 0.0)


def add_lora(module: Any, lora: Lora, folder: Path, *, empty: bool = False) -> Any:
    """Put adapters into ``module`` (in place), in the master dtype; dropout 0. ``empty``: on the device *meta*."""
    with quantized.silent():
        from peft import LoraConfig, get_peft_model

    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    try:
        with warnings.catch_warnings():  # peft asks transformers by a name that it has since changed
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            peft = get_peft_model(module, config, low_cpu_mem_usage=empty)
    except ValueError as error:
        raise ModelError(f"model.lora.targets={lora.targets}: {error} (model {folder})") from error
    return peft.eval()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars of transformers while it loads or writes a model."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
