"""Saving, loading, exporting, skipping: what a backend keeps."""

from __future__ import annotations

import dataclasses
import gc
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.local.helpers import batch, objective
from trinity_core.algo.batch import LossOutput
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.backends.local.moved import STRIDE, Moved
from trinity_core.config.schema import Lora
from trinity_core.errors import CheckpointError, ModelError, RunError
from trinity_core.protocols import Loss

LORA = Lora(rank=4, alpha=8.0)


def step(live: Any, seed: int, loss: Loss | None = None, lr_scale: float = 1.0) -> Any:
    return live.update(batch(seed), "policy", objective(loss), lr_scale=lr_scale)


def logp(live: Any, model: str = "policy") -> Any:
    return live.measure(batch(), model, frozenset({"logp"}))["logp"]


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_training_goes_on_bit_for_bit(make_run: Any, tmp_path: Path, lora: Lora | None) -> None:
    live = Local().open(make_run(lora=lora))
    step(live, 1)
    (tmp_path / "saved").mkdir()
    live.save(tmp_path / "saved")
    step(live, 2)
    torch.rand(3)
    again = Local().open(make_run(lora=lora))
    step(again, 5)
    again.load(tmp_path / "saved")
    step(again, 2)
    assert again.digest() == live.digest()


def test_adapters_are_saved_alone(make_run: Any, tmp_path: Path) -> None:
    live = Local().open(make_run(lora=LORA))
    live.save(tmp_path)
    from safetensors import safe_open

    with safe_open(tmp_path / "weights.safetensors", "pt") as file:
        assert all("lora_" in name for name in file.keys())  # noqa: SIM118 - not a mapping
    told = live.describe()
    assert 0 < told["trained"] < told["parameters"]


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_file_is_named_and_changes_nothing(make_run: Any, tmp_path: Path, name: str, damage: str) -> None:
    live = Local().open(make_run())
    step(live, 1)
    live.save(tmp_path)
    data = bytearray((tmp_path / name).read_bytes())
    data[-5] ^= 0x10
    (tmp_path / name).write_bytes(data[: len(data) // 2] if damage == "cut" else data)
    if damage == "gone":
        (tmp_path / name).unlink()
    other = Local().open(make_run())
    before = other.digest()
    with pytest.raises(CheckpointError, match=name):
        other.load(tmp_path)
    assert other.digest() == before


def test_a_checkpoint_of_another_model_is_refused(make_run: Any, tmp_path: Path) -> None:
    Local().open(make_run(lora=LORA)).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.lora"):
        Local().open(make_run()).load(tmp_path)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_transformers_loads_an_export_alone(make_run: Any, tmp_path: Path, lora: Lora | None) -> None:
    """RES-11: tied embeddings, adapters, template and end tokens survive."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    live = Local().open(make_run(lora=lora))
    step(live, 1, lr_scale=20.0)
    step(live, 2, lr_scale=20.0)
    live.export(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert tokenizer.chat_template == live.tokenizer.hf.chat_template
    assert model.generation_config.eos_token_id == 2
    again = Local().open(make_run(path=str(tmp_path / "out")))
    assert np.abs(logp(again) - logp(live)).max() < 1e-5
    assert np.abs(logp(again) - logp(Local().open(make_run()))).max() > 1e-3


class NotANumber(Loss):
    def __call__(self, batch: Any) -> LossOutput:
        return LossOutput.per_token(batch.logp_N * float("nan"))


def test_a_step_that_is_not_finite_is_not_taken_and_says_so(make_run: Any) -> None:
    live = Local().open(make_run())
    before = live.digest()
    result = step(live, 0, NotANumber())
    assert "not finite" in result.skipped and result.moved == 0 and live.digest() == before


def test_moved_is_the_share_that_changed(make_run: Any) -> None:
    live = Local().open(make_run())
    before = {name: p.detach().clone() for name, p in live.learners["policy"].trained.items()}
    told = step(live, 0).moved
    changed = sum(int((p != before[name]).sum()) for name, p in live.learners["policy"].trained.items())
    assert told == pytest.approx(changed / sum(p.numel() for p in before.values()))
    assert step(live, 0, lr_scale=1e-12).moved < told, "a step too small for float32 moves less (LPM-14)"


def test_of_a_large_tensor_a_sample_is_compared() -> None:
    large, small = torch.zeros(40 * STRIDE), torch.zeros(1000)
    moved = Moved({"large": large, "small": small})
    told = []
    # which of 65,536 neighbours a step changes: of these the first 128 are compared
    for changed in (slice(0), slice(0, 32), slice(100, 200), slice(0, 128)):
        moved.before()
        large.view(-1, STRIDE)[:, changed] += 1
        told.append(moved.share() * (large.numel() + small.numel()) / large.numel())
    assert told == pytest.approx([0, 32 / 128, 28 / 128, 1])


def test_what_others_write_between_two_steps_is_not_counted_as_a_steps(make_run: Any) -> None:
    weights = {"w": torch.zeros(1000)}
    moved, told = Moved(weights), []
    for _ in range(3):
        weights["w"][:500] += 1  # a checkpoint that is loaded, say
        moved.before()
        weights["w"][900:] += 1
        told.append(moved.share())
    assert told == [0.1, 0.1, 0.1]


def test_the_norm_is_clipped(make_run: Any) -> None:
    run = make_run()
    free = dataclasses.replace(run.config.optim, clip_norm=None, eps=1.0)
    run.config = dataclasses.replace(run.config, optim=free)
    live = Local().open(run)
    norm = step(live, 0).grad_norm
    moved_free = {name: p.detach().clone() for name, p in live.learners["policy"].trained.items()}
    run.config = dataclasses.replace(run.config, optim=dataclasses.replace(free, clip_norm=norm / 10))
    clipped = Local().open(run)
    start = {name: p.detach().clone() for name, p in clipped.learners["policy"].trained.items()}
    assert step(clipped, 0).grad_norm == pytest.approx(norm)
    far = sum(float((moved_free[n] - start[n]).norm() ** 2) for n in start) ** 0.5
    near = sum(float((p.detach() - start[n]).norm() ** 2) for n, p in clipped.learners["policy"].trained.items()) ** 0.5
    assert near < far / 4, "with a large eps Adam's step follows the gradient's size"


def test_the_reference_is_loaded_when_it_is_asked_for(make_run: Any) -> None:
    live = Local().open(make_run("bfloat16"))
    assert live._reference is None
    assert np.array_equal(logp(live, "reference"), logp(live)), "before the first step the KL is exactly 0"
    step(live, 0)
    assert not np.array_equal(logp(live, "reference"), logp(live))


def test_the_reference_of_adapters_is_the_model_without_them(make_run: Any) -> None:
    live = Local().open(make_run(lora=LORA))
    before = logp(live)
    step(live, 0, lr_scale=20.0)
    step(live, 1, lr_scale=20.0)
    assert np.array_equal(logp(live, "reference"), before) and not np.array_equal(logp(live), before)


def test_what_it_cannot_do_is_refused_by_name(make_run: Any) -> None:
    run = make_run()
    live = Local().open(run)
    with pytest.raises(RunError, match="value"):
        live.measure(batch(), "policy", frozenset({"value"}))
    with pytest.raises(RunError, match="critic"):
        live.measure(batch(), "critic", frozenset({"logp"}))


def test_unknown_adapter_targets_are_refused(make_run: Any) -> None:
    with pytest.raises(ModelError, match=r"model\.lora\.targets"):
        Local().open(make_run(lora=Lora(targets=("nowhere",))))


def test_steps_leave_nothing_behind(make_run: Any) -> None:
    live = Local().open(make_run())

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    for seed in range(3):
        step(live, seed)
    before, rss = tensors(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(20):
        step(live, seed)
    assert tensors() <= before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss < 20 * 1024
