"""Fused steps of ``hf`` beside the transformers module: same tokens, same log-probabilities, and a refusal where they would not be."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.local.helpers import batch, objective
from tests.local.test_engine import ask, pair, wave
from trinity_core.builtins.engines.hf import HF
from trinity_core.builtins.engines.hf_decoder import LONG, Decoder, why_not_decoded
from trinity_core.builtins.engines.hf_fused import Fused, disagreement
from trinity_core.builtins.engines.hf_prompts import lay_out
from trinity_core.builtins.engines.hf_rows import Rows
from trinity_core.builtins.models.causal import CausalLM
from trinity_core.config.schema import Lora, Model

SHARED = list(range(3, 23))
MIXED = [
    ask([*SHARED, 30 + p, *[40 + p] * (4 * p)], a, temperature=1.0 if a % 2 else 0.6, max_tokens=3 + 13 * (a % 3))
    for p in range(4)
    for a in range(4)
] + [ask([9, 8, 7]), ask(SHARED), ask([5] * 150, max_tokens=90)]


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("float64", 1e-10)])
def test_fused_steps_sample_what_the_module_samples(make_run: Any, dtype: str, limit: float) -> None:
    run = make_run(dtype)
    fused, plain = pair(run)[1], pair(run, fused=False)[1]
    for a, b in zip(wave(fused, MIXED), wave(plain, MIXED), strict=True):
        assert a.tokens_N.tolist() == b.tokens_N.tolist() and a.finish == b.finish
        assert np.abs(np.asarray(a.logp_N, np.float64) - b.logp_N).max() <= limit
    assert decoder_of(fused) is not None and decoder_of(plain) is None


def test_fused_bfloat16_is_as_near_as_rounding_allows(make_run: Any) -> None:
    run = make_run("bfloat16")
    fused, plain = pair(run)[1], pair(run, fused=False)[1]
    one = [ask([*SHARED, p], temperature=1.0, max_tokens=1) for p in range(30, 60)]
    gaps = [
        abs(float(a.logp_N[0] - b.logp_N[0]))
        for a, b in zip(wave(fused, one), wave(plain, one))
        if a.tokens_N == b.tokens_N
    ]
    assert len(gaps) > 20 and np.mean(gaps) <= 0.05


def decoder_of(engine: Any) -> Any:
    return engine._fused._decoder


def other_family(folder: Path, name: str, **more: Any) -> CausalLM:
    """A tiny random model of another family, in float64."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.2, "max_position_embeddings": 256,
    }  # fmt: skip
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **(sizes | more)))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:  # norms and biases that do something
                parameter.add_(torch.randn_like(parameter) * 0.3)
    module.save_pretrained(folder)
    return CausalLM.load(folder, Model(str(folder), "float64"), device="cpu")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("llama", {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"head_dim": 8}),
        ("qwen3", {}),
    ],
    ids=["llama", "llama-linear-rope", "mistral", "qwen2", "qwen3"],
)
def test_families_agree_with_their_module(name: str, more: Any, tmp_path: Path) -> None:
    lm = other_family(tmp_path, name, **more)
    assert why_not_decoded(lm) is None
    with torch.no_grad():
        decoder = Decoder(lm)
        assert disagreement(decoder) is None
    assert Fused(True).decoder(lm, 0, 8) is not None


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("gemma", {}, "GemmaModel is not among"),
        ("mistral", {"sliding_window": 16}, "window"),
        ("llama", {"hidden_act": "gelu"}, "activation gelu"),
    ],
)
def test_what_it_does_not_know_goes_through_the_module_and_says_so(
    name: str, more: Any, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lm = other_family(tmp_path, name, **more)
    with caplog.at_level(logging.INFO):
        assert Fused(True).decoder(lm, 0, 8) is None
    assert words in caplog.text


def test_a_model_that_computes_otherwise_is_found_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The family's name is right and its arithmetic is not: a hook scales one layer's output."""
    lm = other_family(tmp_path, "llama")
    lm.body.layers[1].mlp.register_forward_hook(lambda module, args, out: out * 1.01)
    with caplog.at_level(logging.INFO):
        assert Fused(True).decoder(lm, 0, 8) is None
    assert "logits differ" in caplog.text


def test_adapters_go_through_the_module(make_run: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        engine = pair(make_run(lora=Lora(rank=2)))[1]
        wave(engine, MIXED[:2])
    assert decoder_of(engine) is None and "it has adapters" in caplog.text


def test_a_change_of_the_shared_module_is_sampled_at_once(make_run: Any) -> None:
    """Even without a delivery: a copy of weights never outlives them."""
    run = make_run("bfloat16")
    backend, engine = pair(run)
    before = wave(engine, MIXED[:4])
    backend.update(batch(), "policy", objective(), lr_scale=20.0)
    after = wave(engine, MIXED[:4])
    assert [a.logp_N.tolist() for a in after] != [b.logp_N.tolist() for b in before]
    # (the optimizer's fused step does not count its writes: without the comparison of values this would not be seen)
    asyncio.run(engine.load(backend.publish(1, copy=False)))
    assert [a.logp_N.tolist() for a in wave(engine, MIXED[:4])] == [a.logp_N.tolist() for a in after]


@pytest.mark.parametrize("requests", [MIXED, MIXED[:2]], ids=["long", "short"])
def test_delivered_weights_are_ready_before_their_first_wave(make_run: Any, requests: Any) -> None:
    run = make_run("bfloat16")
    (backend, engine), fresh = pair(run), HF().open(run)
    wave(engine, requests)
    backend.update(batch(), "policy", objective(), lr_scale=20.0)
    asyncio.run(fresh.load(backend.publish(1, copy=True)))
    asyncio.run(engine.load(backend.publish(1, copy=False)))
    engine._thread.submit(lambda: None).result()
    ready = decoder_of(engine)._state
    assert ready[0] == engine._deliveries == 2
    after = wave(engine, requests)
    assert decoder_of(engine)._state is ready, "the wave copied them again"
    for version in (2, 3):
        asyncio.run(engine.load(backend.publish(version, copy=False)))
    engine._thread.submit(lambda: None).result()
    assert decoder_of(engine)._state[0] == 3, "nobody has sampled between the last two"
    assert [a.logp_N.tolist() for a in after] == [f.logp_N.tolist() for f in wave(fresh, requests)]


def test_what_could_not_be_made_ready_is_told_and_made_by_the_wave(
    make_run: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend, engine = pair(make_run("bfloat16"))
    few = [ask([*SHARED, 30 + a], a, temperature=1.0, max_tokens=5) for a in range(5)]
    before = wave(engine, few)
    backend.update(batch(), "policy", objective(), lr_scale=20.0)

    def full(*_: Any) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as broken:
        broken.setattr(torch, "_foreach_copy_", full)
        assert asyncio.run(engine.load(backend.publish(1, copy=False))).version == 1
        engine._thread.submit(lambda: None).result()
    assert "version 1 was not made ready" in caplog.text and "no memory" in caplog.text
    after = wave(engine, few)
    assert [a.logp_N.tolist() for a in after] != [b.logp_N.tolist() for b in before]
    assert {a.versions[0][0] for a in after} == {1}


def test_the_processors_own_layout_changes_no_bit(make_run: Any) -> None:
    engine = pair(make_run("bfloat16"))[1]
    ask_for = [ask([*SHARED, 30 + a], a, temperature=1.0, max_tokens=5) for a in range(5)]
    short = wave(engine, ask_for)
    longer = wave(engine, [*ask_for, ask([1, 2, 3], max_tokens=LONG)])[:5]
    again = wave(engine, ask_for)
    for a, b, c in zip(short, longer, again):
        assert a.tokens_N.tolist() == b.tokens_N.tolist() == c.tokens_N.tolist()
        assert a.logp_N.tolist() == c.logp_N.tolist()


def test_in_float32_long_replies_take_a_copy_that_follows_the_weights(make_run: Any) -> None:
    backend, engine = pair(make_run("float32"))
    ask_for = [ask([*SHARED, 30 + a], a, temperature=1.0, max_tokens=5) for a in range(5)]
    long = [*ask_for, ask([1, 2, 3], max_tokens=LONG)]
    short, longer = wave(engine, ask_for), wave(engine, long)
    head = decoder_of(engine).head
    assert head.widens and head._weight is not None and not decoder_of(engine).layers[0].out.widens
    for a, b in zip(short, longer):
        assert a.tokens_N.tolist() == b.tokens_N.tolist()
        assert a.logp_N == pytest.approx(b.logp_N, abs=1e-5)
    backend.update(batch(), "policy", objective(), lr_scale=20.0)
    after = wave(engine, long)
    assert head._weight is not None
    expected = wave(engine, ask_for)
    assert head._weight is None, "a short wave keeps no copy"
    for a, b in zip(after, expected):
        assert a.logp_N == pytest.approx(b.logp_N, abs=1e-5)
    assert after[0].logp_N[0] != pytest.approx(longer[0].logp_N[0], abs=1e-4)


def test_rows_that_end_leave_before_the_next_step(make_run: Any) -> None:
    lm = pair(make_run("float64"))[0].policy
    with torch.no_grad():
        decoder = Decoder(lm)
        prompts = [np.array([3, 4, 5], np.int64), np.array([6, 7, 8, 9], np.int64)]
        rows = Rows(decoder, prompts, [0, 0, 1, 1, 0], 100)
        assert rows.order == [2, 3, 0, 1, 4]  # longest prompts first
        rows.prefill()
        whole = rows.step(torch.tensor([1, 2, 3, 4, 5]))
        assert rows.keep([1, 2, 4]) == [4, 1, 2] and len(rows) == 3
        kept = rows.step(torch.tensor([7, 8, 9]))
        alone = Rows(decoder, prompts, [1, 0, 0], 100)
        alone.prefill()
        assert torch.allclose(alone.step(torch.tensor([2, 5, 3])), whole[[1, 4, 2]], atol=1e-12)
        assert torch.allclose(alone.step(torch.tensor([8, 7, 9])), kept[[1, 0, 2]], atol=1e-12)


@pytest.mark.parametrize("apart", [1, 10**9])
def test_rows_of_unequal_prompts_lie_in_strips_of_their_own(
    make_run: Any, monkeypatch: pytest.MonkeyPatch, apart: int
) -> None:
    from trinity_core.builtins.engines import hf_rows

    lengths = [np.arange(3, 3 + size, dtype=np.int64) for size in (100, 90, 20, 20, 8)]
    monkeypatch.setattr(hf_rows, "APART", apart)
    run = make_run("float64")
    decoder = Decoder(pair(run)[0].policy)
    assert [strip.rows for strip in Rows(decoder, lengths, range(5), 4).strips] == ([1, 1, 2, 1] if apart == 1 else [5])
    for a, b in zip(wave(pair(run)[1], MIXED), wave(pair(run, fused=False)[1], MIXED), strict=True):
        assert a.tokens_N.tolist() == b.tokens_N.tolist() and np.abs(a.logp_N - b.logp_N).max() <= 1e-10


def test_shared_beginnings_are_one_run_of_cells() -> None:
    # 52 tokens in front of 8 questions of 21: 52 + 8·21 cells, not 8·73
    rng = np.random.default_rng(0)
    head = np.arange(52)
    layout = lay_out([np.concatenate([head, rng.integers(60, 99, size=21)]) for _ in range(8)])
    assert len(layout.ids_T) == 52 + 8 * 21
    assert len(lay_out([head, head[:30], head]).ids_T) == 52


def test_every_prompt_is_a_path_of_cells() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        stems = [rng.integers(0, 3, size=rng.integers(1, 40)) for _ in range(3)]
        prompts = []
        for _ in range(rng.integers(1, 12)):
            stem = stems[rng.integers(3)]
            prompts.append(
                np.concatenate([stem[: rng.integers(1, len(stem) + 1)], rng.integers(0, 3, size=rng.integers(0, 20))])
            )
        layout = lay_out(prompts)
        for prompt, path in zip(prompts, layout.paths, strict=True):
            assert layout.ids_T[path].tolist() == prompt.tolist()
            assert layout.position_T[path].tolist() == list(range(len(prompt)))
        queries = np.concatenate([section.query_NS.ravel() for section in layout.sections])
        assert queries[layout.slot_T].tolist() == list(range(len(layout.ids_T)))
        for section in layout.sections:  # a query's own cell stands at its position among the keys
            assert (np.take_along_axis(section.key_NK, section.position_NS, 1) == section.query_NS).all()


def test_long_prompts_attend_in_pieces(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from trinity_core.builtins.engines import hf_rows

    run = make_run("float64")
    whole = wave(pair(run)[1], MIXED)
    monkeypatch.setattr(hf_rows, "SCORES", 2000)
    for a, b in zip(whole, wave(pair(run)[1], MIXED), strict=True):
        assert a.tokens_N.tolist() == b.tokens_N.tolist() and np.abs(a.logp_N - b.logp_N).max() <= 1e-10
