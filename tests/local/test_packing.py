"""Shared prefixes computed once give what plain rows give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.local.helpers import batch, distance, gradient, objective
from trinity_core.algo.cut import packed_tokens
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.models import attention
from trinity_core.builtins.models.packing import pack


def seen(packed: Any, cell: int) -> list[int]:
    """Cells that ``cell`` sees, in order."""
    for block in packed.blocks:
        if block.start <= cell < block.stop:
            keys = np.concatenate([block.before_K, np.arange(block.start, block.stop)])
            if block.mask_QK is None:
                return keys[: len(block.before_K) + cell - block.start + 1].tolist()
            return keys[block.mask_QK[cell - block.start]].tolist()
    raise AssertionError(f"cell {cell} is in no block")


@pytest.mark.parametrize("join", [0, 40, 4096])
def test_a_cell_sees_its_own_path_and_nothing_else(join: int) -> None:
    made = batch()
    packed = pack(made, join=join)
    assert (len(packed.blocks) == 1) == (join == 4096)
    for b in range(len(made)):
        tokens_T = made.tokens_T[made.offsets_B1[b] : made.offsets_B1[b + 1]]
        for n in np.flatnonzero(made.row_N == b):
            place = int(made.action_N[n] - 1 - made.offsets_B1[b])
            path = seen(packed, int(packed.cell_N[n]))
            assert packed.position_T[path].tolist() == list(range(place + 1))
            assert packed.ids_T[path].tolist() == tokens_T[: place + 1].tolist()


@pytest.mark.parametrize("join", [0, 40, 4096])
def test_blocks_are_all_cells_once_and_none_sees_nothing(join: int) -> None:
    packed = pack(batch(), join=join)
    cells = [cell for block in packed.blocks for cell in range(block.start, block.stop)]
    assert cells == list(range(len(packed.ids_T)))
    for block in packed.blocks:
        assert (block.before_K < block.start).all()
        assert block.mask_QK is None or block.mask_QK.any(axis=1).all(), "a cell that sees nothing gives NaN"


def test_cells_are_those_of_the_trie() -> None:
    made = batch()
    assert len(pack(made).ids_T) == packed_tokens(made, np.arange(len(made)))
    # 3 groups of prompts 5, 9, 13; plain rows compute each prompt for 4 attempts and the branch: 5 times
    plain = packed_tokens(made, np.arange(len(made)), share=False)
    assert plain - len(pack(made).ids_T) >= 4 * (5 + 9 + 13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("join", [0, 40, 4096])
@pytest.mark.parametrize("small", [10**9, 0], ids=["multiplied out", "the library's kernel"])
def test_block_attention_is_attention_over_each_cells_path(
    dtype: torch.dtype, join: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Value and gradient against softmax written down for one cell at a time in float64; six query heads share two of keys."""
    monkeypatch.setattr(attention, "SMALL", small)
    packed = pack(batch(), join=join)
    size = len(packed.ids_T)
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(heads, size, 8, generator=rng, dtype=torch.float64) for heads in (6, 2, 2))
    weight = torch.randn(6, size, 8, generator=rng, dtype=torch.float64)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    rows = []
    for cell in range(size):
        path = seen(packed, cell)
        for head in range(6):
            scores = leaves[1][head // 3, path] @ leaves[0][head, cell] * 0.3
            rows.append(torch.softmax(scores, 0) @ leaves[2][head // 3, path])
    slow = torch.stack(rows).view(size, 6, 8).transpose(0, 1)
    (slow * weight).sum().backward()
    mine = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    blocks = attention.place(packed.blocks, torch.device("cpu"), dtype)
    fast = attention.BlockAttention.apply(*mine, blocks, 0.3)
    (fast * weight.to(dtype)).sum().backward()
    limit = 1e-12 if dtype == torch.float64 else 1e-5
    for found, wanted in [(fast, slow), *((x.grad, y.grad) for x, y in zip(mine, leaves))]:
        assert float((found - wanted).detach().norm() / wanted.detach().norm()) <= limit


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("micro_tokens", [4096, 40, 1])
def test_shared_and_plain_paths_have_one_gradient(make_run: Any, dtype: str, limit: float, micro_tokens: int) -> None:
    made = batch()
    plain = gradient(Local(share_prefix=False).open(make_run(dtype)), made)
    live = Local(micro_tokens=micro_tokens).open(make_run(dtype))
    assert live.describe()["shared_prefixes"] == "computed once"
    assert distance(gradient(live, made), plain) <= limit


def test_head_chunks_change_nothing(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = batch()
    whole = gradient(Local().open(make_run("float64")), made)
    from trinity_core.builtins.models import token_head

    monkeypatch.setitem(token_head.token_outputs.__kwdefaults__, "chunk", 3)
    assert distance(gradient(Local().open(make_run("float64")), made), whole) <= 1e-12


def test_gradient_checkpointing_changes_nothing(make_run: Any) -> None:
    made = batch()
    plain = gradient(Local().open(make_run()), made)
    assert distance(gradient(Local(gradient_checkpointing=True).open(make_run()), made), plain) <= 1e-5


@pytest.mark.parametrize("window", [4, 64])
def test_a_model_with_a_window_is_not_shared_and_says_so(make_run: Any, tiny: Any, tmp_path: Any, window: int) -> None:
    from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=260,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=window,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path / "mistral")
    AutoTokenizer.from_pretrained(tiny).save_pretrained(tmp_path / "mistral")
    live = Local().open(make_run(path=str(tmp_path / "mistral")))
    assert live.describe()["shared_prefixes"].startswith("off: MistralForCausalLM")
    assert live.update(batch(), "policy", objective(), lr_scale=1.0).skipped is None
