"""Adapters between trainer, engine and export."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools

import numpy as np
import pytest
import torch

from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.engines.hf import HF
from trinity_core.config.schema import Lora, Model, Optim
from trinity_core.run.deliver import deliver, publish
from trinity_core.testing.fakes import FakeRun, bare_config
from trinity_core.testing.one_update import batch_for, logp, trained_once
from trinity_core.testing.tiny import make_tiny

LORA = Lora(rank=4, alpha=8.0)
QLORA = Lora(rank=4, alpha=8.0, quantize="nf4")
quantizes = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs the extra qlora")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def run_of(folder, lora=None):
    return FakeRun(config=bare_config(model=Model(str(folder), dtype="float32", lora=lora), optim=Optim(lr=0.02)))


def sampled_by(engine, backend):
    """The engine's log-probabilities of the probe: every action token of the small batch."""
    batch = batch_for(backend)
    rows = [batch.tokens_T[a:b] for a, b in zip(batch.offsets_B1, batch.offsets_B1[1:])]
    return np.concatenate([asyncio.run(engine.score(row)).logp_T for row in rows])[batch.action_N].astype(np.float64)


@pytest.mark.parametrize("lora", [LORA, pytest.param(QLORA, marks=quantizes)], ids=["lora", "qlora"])
def test_the_sampler_follows_every_adapter_it_is_sent(tmp_path, lora):
    """WGT-01: after each step the receiver's fingerprint is new, and a probe's log-probabilities moved as the trainer's did."""
    run = run_of(make_tiny(tmp_path / "tiny"), lora)
    backend, engine = Local().open(run), HF().open(run)
    seen = []
    for version in range(3):
        receipt = asyncio.run(deliver(engine, publish(backend, version, copy=True, verify=True)))
        seen.append((receipt.digest, sampled_by(engine, backend), logp(backend)))
        assert trained_once(backend, seed=version).grad_norm > 0, "only a step with a gradient is evidence"
    for (digest, sampled_N, told_N), (next_digest, next_sampled_N, next_told_N) in itertools.pairwise(seen):
        assert digest != next_digest
        assert np.abs(next_sampled_N - sampled_N).max() > 1e-3
        assert np.abs((next_sampled_N - sampled_N) - (next_told_N - told_N)).max() < 1e-5


@quantizes
def test_a_base_in_4_bits_is_sampled_and_exported_as_the_policy_that_trains(tmp_path):
    """WGT-05: merging into 4 bits rounds the adapters away. They are served unmerged; an export widens what the bits say."""
    folder = make_tiny(tmp_path / "tiny", hidden=64)
    run = run_of(folder, QLORA)
    backend, engine = Local().open(run), HF().open(run)
    for seed in range(3):
        trained_once(backend, seed=seed)
    sent = backend.publish(1, copy=True)
    assert sent.kind == "adapter"
    asyncio.run(engine.load(sent))
    assert np.abs(sampled_by(engine, backend) - logp(backend)).max() < 1e-5
    backend.export(tmp_path / "out")
    exported = Local().open(run_of(tmp_path / "out"))
    assert np.abs(logp(exported) - logp(backend)).max() < 1e-5
    assert np.abs(logp(exported) - logp(Local().open(run_of(folder)))).max() > 1e-2


@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings_survive_a_merge(tmp_path, tied):
    """RES-11: one matrix for embedding and head before and after; the merged model computes what the adapters did."""
    from transformers import AutoModelForCausalLM

    backend = Local().open(run_of(make_tiny(tmp_path / "tiny", tied=tied), LORA))
    for seed in range(3):
        trained_once(backend, seed=seed)
    backend.export(tmp_path / "out")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert (merged.lm_head.weight is merged.model.embed_tokens.weight) == tied
    exported = Local().open(run_of(tmp_path / "out"))
    assert np.abs(logp(exported) - logp(backend)).max() < 1e-5
    assert np.abs(logp(exported) - logp(backend, "reference")).max() > 1e-3
