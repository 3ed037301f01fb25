"""Adapters on a narrow frozen base: what a user with bf16 hardware gets."""

from __future__ import annotations

from trinity_core.builtins.models.causal import CausalLM
from trinity_core.builtins.models.probe import why_not_shared
from trinity_core.config.schema import Lora, Model
from trinity_core.testing.tiny import make_tiny


def test_a_bf16_base_with_adapters_shares_prefixes(tmp_path):
    folder = make_tiny(tmp_path / "tiny")
    model = CausalLM.load(folder, Model(str(folder), dtype="bfloat16"), lora=Lora(rank=2))
    assert why_not_shared(model) is None
