"""Adapters on their way to an engine: alone, whole, on the right base, and merged only where that is asked for."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.local.helpers import batch, experience, objective
from tests.local.test_engine import MIXED, wave
from trinity_core.algo.assemble import assemble
from trinity_core.algo.digest import digest_tensors
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.engines.fake import FakeEngine
from trinity_core.builtins.engines.hf import HF
from trinity_core.builtins.models import adapter
from trinity_core.config.schema import Lora, Part
from trinity_core.errors import DeliveryError, ModelError
from trinity_core.run.deliver import deliver, from_folder, publish, to_folder
from trinity_core.testing.tiny import make_tiny
from trinity_core.types import Attempt, Group, Ok, Task

LORA = Lora(rank=4, alpha=8.0)
PROBE_T = np.arange(10, 30, dtype=np.int32)


def trained(run: Any, steps: int = 2) -> Any:
    live = Local().open(run)
    for seed in range(steps):
        live.update(batch(seed), "policy", objective(), lr_scale=20.0)
    return live


def scored(engine: Any) -> Any:
    return asyncio.run(engine.score(PROBE_T)).logp_T[1:]


def measured(live: Any) -> Any:
    """The trainer's own log-probabilities of the probe."""
    one = experience(PROBE_T[:1].tolist(), PROBE_T[1:].tolist())
    made = assemble([Group("run/0", Task("0", ()), [Attempt([one], score=Ok(0.0))], "train", 0, 0)], seed=0, step=0)
    return live.measure(made, "policy", frozenset({"logp"}))["logp"]


def test_only_adapters_travel(make_run: Any) -> None:
    live = trained(make_run(lora=LORA))
    sent = live.publish(3, copy=True)
    assert (sent.version, sent.kind) == (3, "adapter")
    names = set(sent.payload) - {adapter.ALPHA, adapter.BASE}
    assert names == set(live.learners["policy"].trained) and all("lora_" in name for name in names)
    assert sum(t.numel() for t in sent.payload.values()) == live.describe()["trained"] + 2
    held = {name: tensor.clone() for name, tensor in sent.payload.items()}
    live.update(batch(5), "policy", objective(), lr_scale=1.0)
    assert all(torch.equal(sent.payload[name], tensor) for name, tensor in held.items()), "what was sent stays"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_copy_of_adapters_samples_what_the_shared_module_samples(make_run: Any, dtype: str) -> None:
    run = make_run(dtype, lora=LORA)
    live = trained(run)
    shared, copied = HF().open(run), HF().open(run)
    asyncio.run(shared.load(live.publish(1, copy=False)))
    asyncio.run(copied.load(live.publish(1, copy=True)))
    for a, b in zip(wave(shared, MIXED), wave(copied, MIXED)):
        assert a.tokens_N.tolist() == b.tokens_N.tolist() and a.logp_N.tolist() == b.logp_N.tolist()


@pytest.mark.parametrize("through_a_folder", [False, True])
def test_the_sampler_really_gets_the_adapter(make_run: Any, tmp_path: Path, through_a_folder: bool) -> None:
    """After each delivery the receiver's fingerprint is another one, and the log-probability of a probe has moved as
    the trainer's has."""
    run = make_run(lora=LORA)
    live, engine = Local().open(run), HF().open(run)
    digests, probes, predicted = [], [], []
    for version in range(3):
        weights = publish(live, version, copy=True, verify=True)
        if through_a_folder:
            to_folder(weights, tmp_path / f"1-{version}")
            weights = from_folder(tmp_path / f"1-{version}")
            size = (tmp_path / f"1-{version}" / "model.safetensors").stat().st_size
            assert weights.kind == "adapter" and size < 4 * live.describe()["trained"] + 16_384
        receipt = asyncio.run(deliver(engine, weights))
        assert receipt.evidence == "digest" and receipt.digest == weights.digest
        digests.append(receipt.digest)
        probes.append(scored(engine))
        predicted.append(measured(live))
        live.update(batch(version), "policy", objective(), lr_scale=20.0)
    assert len(set(digests)) == 3
    for before, after in ((0, 1), (1, 2)):
        moved, expected = probes[after] - probes[before], predicted[after] - predicted[before]
        assert np.abs(moved).max() > 1e-3
        assert np.abs(moved - expected).max() < 1e-5


def test_an_engine_that_stayed_behind_is_found(make_run: Any) -> None:
    """An engine that acknowledges a version and keeps its old adapters holds other weights than were sent."""
    run = make_run(lora=LORA)
    live, engine = trained(run), HF().open(run)
    asyncio.run(deliver(engine, publish(live, 0, copy=True, verify=True)))
    stale = live.publish(0, copy=True).payload
    live.update(batch(7), "policy", objective(), lr_scale=20.0)
    weights = dataclasses.replace(publish(live, 1, copy=True, verify=True), payload=stale)
    with pytest.raises(DeliveryError, match="holds other weights"):
        asyncio.run(deliver(engine, weights))


def test_adapters_for_another_base_or_scale_are_refused(make_run: Any, tmp_path: Path) -> None:
    sent = trained(make_run(lora=LORA)).publish(1, copy=True)
    base = make_tiny(tmp_path / "base", seed=1)
    for run, says in (
        (make_run(lora=LORA, path=str(base)), "digest of the base's weights"),
        (make_run(lora=Lora(rank=4, alpha=16.0)), r"model\.lora\.alpha"),
        (make_run(lora=Lora(rank=2, alpha=8.0)), r"model\.lora here"),
        (make_run(lora=Lora(rank=4, alpha=8.0, targets=("q_proj",))), r"model\.lora here"),
    ):
        with pytest.raises(ModelError, match=says):
            asyncio.run(HF().open(run).load(sent))
    with pytest.raises(DeliveryError, match=r"Set model\.lora"):
        asyncio.run(HF().open(make_run()).load(sent))


def test_shards_of_a_base_have_the_digest_of_the_whole(tiny: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(tiny / "model.safetensors")
    assert adapter.base_digest(tiny) == digest_tensors(tensors.items())
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[:5]}, tmp_path / "a.safetensors")
    save_file({name: tensors[name] for name in names[5:]}, tmp_path / "b.safetensors")
    assert adapter.base_digest(tmp_path) == adapter.base_digest(tiny)


def test_an_engine_that_loads_draws_nothing(make_run: Any) -> None:
    """A checkpoint holds the random state: how often an engine loads must not be felt there."""
    run = make_run(lora=LORA)
    sent, engine = trained(run).publish(1, copy=True), HF().open(run)
    before = torch.get_rng_state()
    asyncio.run(engine.load(sent))
    wave(engine, MIXED[:2])
    assert torch.equal(torch.get_rng_state(), before)


def test_an_engine_without_adapters_gets_a_merged_model(make_run: Any) -> None:
    run = make_run(lora=LORA)
    live = trained(run)
    run.config = dataclasses.replace(run.config, parts={"engine": Part("engine", "fake", "engine", FakeEngine())})
    merging = Local().open(run)
    merging.load(saved(live, run.dir))
    sent, engine = merging.publish(1, copy=True), HF().open(run)
    assert sent.kind == "tensors" and not [name for name in sent.payload if "lora_" in name]
    asyncio.run(engine.load(sent))
    assert np.abs(scored(engine) - measured(live)).max() < 1e-5
    asyncio.run(engine.load(live.publish(2, copy=True)))  # and it changes over to adapters, and back
    assert np.abs(scored(engine) - measured(live)).max() < 1e-5
    asyncio.run(engine.load(sent))
    assert np.abs(scored(engine) - measured(live)).max() < 1e-5


def saved(live: Any, folder: Path) -> Path:
    folder = folder / "saved"
    folder.mkdir()
    live.save(folder)
    return folder


@pytest.mark.parametrize("tied", [True, False])
def test_a_merged_export_computes_what_the_adapters_do(make_run: Any, tmp_path: Path, tied: bool) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_tiny(tmp_path / "base", tied=tied)
    live = trained(make_run(lora=LORA, path=str(folder)))
    live.export(tmp_path / "out")
    merged, base = (AutoModelForCausalLM.from_pretrained(path) for path in (tmp_path / "out", folder))
    assert (merged.lm_head.weight is merged.model.embed_tokens.weight) == tied
    ids = torch.from_numpy(PROBE_T.astype(np.int64))
    with torch.no_grad():
        told, plain = (
            model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0].numpy()
            for model in (merged, base)
        )
    assert np.abs(told - measured(live)).max() < 1e-5 < np.abs(plain - measured(live)).max()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] == tied
