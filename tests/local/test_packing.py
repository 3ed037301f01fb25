"""Shared prefixes computed once give what plain rows give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.local.helpers import batch, distance, gradient, objective
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.models.packing import pack


def test_a_cell_sees_its_own_path_and_nothing_else() -> None:
    made = batch()
    packed = pack(made)
    assert packed.mask_RLL is not None
    for b in range(len(made)):
        tokens_T = made.tokens_T[made.offsets_B1[b] : made.offsets_B1[b + 1]]
        for n in np.flatnonzero(made.row_N == b):
            row, cell = divmod(int(packed.cell_N[n]), packed.ids_RL.shape[1])
            place = int(made.action_N[n] - 1 - made.offsets_B1[b])
            seen = np.flatnonzero(packed.mask_RLL[row, cell])
            assert packed.position_RL[row, seen].tolist() == list(range(place + 1))
            assert packed.ids_RL[row, seen].tolist() == tokens_T[: place + 1].tolist()


def test_a_shared_prompt_is_laid_out_once() -> None:
    made = batch()
    shared, plain = pack(made), pack(made, share=False)
    assert plain.mask_RLL is None and plain.ids_RL.shape[0] == len(made)
    # 3 groups of prompts 5, 9, 13; the plain path computes each prompt for 4 attempts and the branch: 5 times
    assert plain.num_cells - shared.num_cells >= 4 * (5 + 9 + 13)


def test_the_last_token_of_an_answer_is_no_input() -> None:
    made = batch(attempts=1)
    ends = int(made.lengths_B().sum()) - len(made)
    assert pack(made).num_cells == pack(made, share=False).num_cells == ends


def test_padding_sees_itself_only() -> None:
    made = batch()
    packed = pack(made)
    assert packed.mask_RLL is not None
    assert packed.mask_RLL.any(axis=2).all(), "a row that sees nothing gives NaN"


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
    from trinity_core.builtins.models import head

    monkeypatch.setitem(head.head_outputs.__kwdefaults__, "chunk", 3)
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
