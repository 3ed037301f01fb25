"""A frozen base in 4 bits: QLoRA (Dettmers et al. 2023, arXiv:2305.14314), with the kernels of ``bitsandbytes``.

Every matrix of a linear layer but the head is stored as NormalFloat-4 in blocks of 64, the scales of blocks quantized once
more (section 3: "double quantization"); each product widens its matrix to the compute dtype. Embeddings, norms and the head
stay as they are, adapters are in the master dtype.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Iterator
from typing import Any

import torch

from trinity_core.errors import ConfigError

NOISE = "bitsandbytes.backends.cpu.ops"
"""Logger that reports, at import, an optional kernel that is not there; it is one that is never used here."""


def nf4(compute: torch.dtype, place: torch.device) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` for a base in 4 bits on ``place``: each matrix is quantized as it is read, so the whole
    model never exists in full."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError("model.lora.quantize=nf4 needs bitsandbytes. Run `pip install 'trinity-core[local,qlora]'`")
    if compute == torch.float64:  # its kernels know no float64 and would return what happens to be in memory
        raise ConfigError("model.lora.quantize=nf4 has products in float32 or bfloat16. Set model.dtype to one of them")
    from transformers import BitsAndBytesConfig

    with silent():
        import bitsandbytes  # noqa: F401 - here, where it is silent
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )
    return {"quantization_config": config, "device_map": {"": place}}


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Nothing is printed by an import of ``bitsandbytes``, or of ``peft``, which imports it where it is installed."""
    noise = logging.getLogger(NOISE)
    level = noise.level
    noise.setLevel(logging.ERROR)
    try:
        yield
    finally:
        noise.setLevel(level)


def keep_layout(module: torch.nn.Module) -> None:
    """One layout and one kernel in every pass. The library would repack matrices in the first pass without gradient on a CPU
    that multiplies bfloat16; what is packed so gives no gradient to the layers below."""
    for layer in module.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


def widen(parameter: Any) -> torch.Tensor:
    """The matrix that a quantized parameter stands for, in the dtype it was quantized from."""
    from bitsandbytes.functional import dequantize_4bit

    wide: torch.Tensor = dequantize_4bit(parameter.data, parameter.quant_state)
    return wide


def size(parameter: torch.Tensor) -> int:
    """Elements of a parameter, of a quantized one those of the matrix it stands for."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else torch.Size(state.shape).numel()
