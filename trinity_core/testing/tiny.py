"""A tiny random Llama with a byte tokenizer: a whole model folder in milliseconds, without a download.

>>> folder = make_tiny(tmp_path / "tiny")          # doctest: +SKIP
>>> # trinity run model.path=<folder>
"""

from __future__ import annotations

from pathlib import Path

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Keeps the prefix property: a longer conversation starts with the tokens of a shorter one."""
SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")


def make_tiny(
    folder: str | Path,
    *,
    extra_tokens: int = 0,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    max_positions: int = 512,
    spread: float = 0.2,
    tied: bool = True,
    dtype: str = "float32",
    chat_template: bool = True,
    seed: int = 0,
) -> Path:
    """Write a Hugging Face folder (config, safetensors, fast tokenizer, chat template) and return it.

    The vocabulary is 3 special tokens, the 256 bytes, and ``extra_tokens`` that no text encodes to. ``spread`` is the
    standard deviation of the initial weights: .2 gives peaked distributions, where errors of arithmetic show.
    Equal arguments give equal bytes.
    """
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from trinity_core.builtins.models.causal import quiet

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIAL, *letters, *(f"<|extra_{i}|>" for i in range(extra_tokens))]
    core = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=SPECIAL[0], eos_token=SPECIAL[2], model_max_length=max_positions
    )
    if chat_template:
        tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_positions,
        initializer_range=spread,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
    )
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    return folder
