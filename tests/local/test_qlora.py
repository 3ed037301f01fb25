"""A base in 4 bits under adapters: it computes what its bits say in every pass, trains, is served unmerged, exports exactly."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.local.helpers import batch, distance, gradient, objective
from tests.local.test_adapters import measured, saved, scored
from tests.local.test_engine import MIXED, wave
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.engines.fake import FakeEngine
from trinity_core.builtins.engines.hf import HF
from trinity_core.builtins.models import quantized
from trinity_core.config.schema import Critic, Lora, Part
from trinity_core.errors import ConfigError
from trinity_core.testing.tiny import make_tiny

QLORA = Lora(rank=4, alpha=8.0, quantize="nf4")
needed = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs the extra qlora")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Matrices of several blocks of 64, so that the library's own packing would fit."""
    return str(make_tiny(tmp_path_factory.mktemp("model") / "wide", hidden=128, spread=0.1))


def trained(live: Any, steps: int = 2, lr_scale: float = 20.0) -> Any:
    for seed in range(steps):
        live.update(batch(seed), "policy", objective(), lr_scale=lr_scale)
    return live


def dequantized(live: Any, run: Any) -> Any:
    """The same adapters on a plain float32 base that holds what the 4 bits say."""
    plain = dataclasses.replace(run.config.model, lora=dataclasses.replace(QLORA, quantize=None))
    run.config = dataclasses.replace(run.config, model=plain)
    twin = Local().open(run)
    twin.load(saved(live, run.dir))
    mine = dict(twin.policy.module.named_parameters())
    with torch.no_grad():
        for name, matrix in live.policy.widened().items():
            mine[name.replace(".weight", ".base_layer.weight")].copy_(matrix)
    return twin


@needed
def test_it_computes_and_differentiates_what_its_bits_say(make_run: Any, wide: str) -> None:
    run = make_run(lora=QLORA, path=wide)
    live = trained(Local().open(run))
    twin = dequantized(live, run)
    assert np.abs(measured(live) - measured(twin)).max() < 1e-5
    assert distance(gradient(live, batch(3)), gradient(twin, batch(3))) < 1e-5


@needed
@pytest.mark.parametrize("local", [{"share_prefix": False}, {"micro_tokens": 1}, {"gradient_checkpointing": True}])
def test_the_gradient_does_not_depend_on_the_cut(make_run: Any, wide: str, local: Any) -> None:
    run = make_run(lora=QLORA, path=wide)
    live, other = trained(Local().open(run)), Local(**local).open(run)
    other.load(saved(live, run.dir))
    assert distance(gradient(other, batch(3)), gradient(live, batch(3))) < 1e-5


@needed
def test_measuring_leaves_the_gradient_alone(make_run: Any, wide: str) -> None:
    """The library repacks a matrix in its first pass without gradient, and no gradient goes through it from then on."""
    live = trained(Local().open(make_run("bfloat16", lora=QLORA, path=wide)))
    before = gradient(live, batch(3))
    live.measure(batch(), "policy", frozenset({"logp"}))
    assert torch.equal(gradient(live, batch(3)), before)


@needed
def test_only_adapters_train_and_the_base_is_a_quarter_of_its_bytes(make_run: Any, wide: str) -> None:
    live = Local().open(make_run(lora=QLORA, path=wide))
    base = {name: p.clone() for name, p in live.policy.module.named_parameters() if "lora_" not in name}
    before = live.measure(batch(), "policy", frozenset({"logp"}))["logp"]
    losses = [live.update(batch(), "policy", objective(), lr_scale=5.0).loss for _ in range(8)]
    assert losses[-1] < losses[0] - 0.5
    now = dict(live.policy.module.named_parameters())
    assert all(torch.equal(now[name], p) for name, p in base.items())
    # in each layer q, k, v, o and the three of the MLP: two weights a byte
    packed = [p for p in base.values() if p.dtype == torch.uint8]
    assert len(packed) == 14 and all(p.numel() * 2 == quantized.size(now[n]) for n, p in base.items() if p.dtype == torch.uint8)  # fmt: skip
    told, plain = live.describe(), Local().open(make_run(path=wide)).describe()
    assert told["parameters"] == plain["parameters"] + told["trained"]
    assert told["dtype"] == "nf4 base, float32 adapters, float32 products"
    assert np.array_equal(live.measure(batch(), "reference", frozenset({"logp"}))["logp"], before)
    assert all(p.dtype == torch.float32 for p in live.learners["policy"].trained.values())


@needed
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_served_unmerged_and_a_copy_samples_the_same(make_run: Any, wide: str, dtype: str) -> None:
    run = make_run(dtype, lora=QLORA, path=wide)
    live = trained(Local().open(run))
    shared, copied = HF().open(run), HF().open(run)
    asyncio.run(shared.load(live.publish(1, copy=False)))
    sent = live.publish(1, copy=True)
    assert sent.kind == "adapter"
    state = torch.get_rng_state()
    asyncio.run(copied.load(sent))
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(wave(shared, MIXED), wave(copied, MIXED)):
        assert a.tokens_N.tolist() == b.tokens_N.tolist() and a.logp_N.tolist() == b.logp_N.tolist()
    if dtype == "float32":
        assert np.abs(scored(copied) - measured(live)).max() < 1e-5


@needed
def test_an_export_is_the_policy_that_was_trained(make_run: Any, wide: str, tmp_path: Path) -> None:
    live = trained(Local().open(make_run(lora=QLORA, path=wide)))
    live.export(tmp_path / "out")
    again, base = Local().open(make_run(path=str(tmp_path / "out"))), Local().open(make_run(path=wide))
    assert again.policy.quantized is False
    assert np.abs(measured(again) - measured(live)).max() < 1e-5
    deltas = live.policy.deltas()
    assert len(deltas) == 14
    with torch.no_grad():  # the other way: on the folder's own matrices the policy is another
        for name, delta in deltas.items():
            base.policy.module.get_parameter(name).add_(delta)
    assert np.abs(measured(base) - measured(live)).max() > 1e-2


@needed
@pytest.mark.parametrize("critic", [None, Critic(lr=1e-2)])
def test_training_goes_on_bit_for_bit_in_4_bits(
    make_run: Any, wide: str, tmp_path: Path, critic: Critic | None
) -> None:
    run = make_run(lora=QLORA, path=wide)
    run.config = dataclasses.replace(run.config, critic=critic)
    live = trained(Local().open(run), 1)
    folder = saved(live, tmp_path)
    trained(live, 3)
    again = trained(Local().open(run), 2)
    again.load(folder)
    assert trained(again, 3).digest() == live.digest()
    assert critic is None or "value" in live.measure(batch(), "critic", frozenset({"value"}))


def test_what_does_not_go_with_4_bits_is_refused(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run("float64", lora=QLORA)
    assert "float32 or bfloat16" in (Local().refuse(run.config) or "")
    run = make_run("float32", lora=QLORA)
    assert Local().refuse(run.config) is None
    parts = {"engine": Part("engine", "fake", "engine", FakeEngine())}
    assert "engine 'fake' takes no adapters" in (Local().refuse(dataclasses.replace(run.config, parts=parts)) or "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, find=importlib.util.find_spec: None if name == "bitsandbytes" else find(name))  # fmt: skip
    with pytest.raises(ConfigError, match=r"trinity-core\[local,qlora\]"):
        Local().open(run)


@needed
@pytest.mark.slow
def test_smollm2_trains_in_4_bits_on_the_cpu(make_run: Any) -> None:
    """Two steps; the sampler, which holds a base of its own, stays with the trainer."""
    import time

    from tests.local.test_smollm2 import MODEL, played

    torch.set_num_threads(1)
    lora = Lora(rank=8, alpha=16.0, quantize="nf4")
    live, made = played(make_run("auto", path=MODEL, lora=lora), copy=True, prompts=2)
    off_N = np.abs(live.measure(made, "policy", frozenset({"logp"}))["logp"] - made.sampler_logp_N)
    began, told = time.perf_counter(), live.describe()
    assert told["shared_prefixes"] == "computed once"
    results = [live.update(made, "policy", objective(), lr_scale=1.0) for _ in range(2)]
    seconds = (time.perf_counter() - began) / 2
    held = sum(p.numel() * p.element_size() for p in live.policy.module.parameters()) / 1e6
    print(
        f"nf4: {told['parameters']:,} parameters in {held:.0f} MB, {told['trained']:,} trained ({told['dtype']}); "
        f"{seconds:.1f} s an update of {made.num_actions} action tokens; sampler − trainer: mean {off_N.mean():.1e}"
    )
    assert all(result.skipped is None and result.moved > 0 for result in results) and results[1].loss < results[0].loss
    assert held < 0.5 * 2 * told["parameters"] / 1e6 + 49152 * 576 * 4 / 1e6, "bfloat16 would be twice a byte's worth"
    assert off_N.mean() <= 0.06
