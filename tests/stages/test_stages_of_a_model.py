"""Stages of a tiny Llama: what the next one starts from, adapters and templates included."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.helpers import trinity
from tests.stages.test_running_stages import FIRST, SECOND, digests, run
from trinity_core.testing.tiny import make_tiny

pytestmark = pytest.mark.slow

WORDS = (
    "stages=[of/first,of/second]",
    "backend=local",
    "engine=hf",
    "taskset=[numbers]",
    "reward=[]",
    "+reward@rewards.letters=trinity_core.testing.fakes:Letters",
    "+taskset@eval.tasksets.heldout=numbers",
    "eval.tasksets.heldout.split=test",
    "eval.tasksets.heldout.size=16",
    "tracker=[jsonl]",
    "threads=1",
    "steps=1",
    "groups_per_step=1",
    "algorithm.group_size=4",
    "sampling.max_response=4",
    "optim.lr=0.1",
    "model.dtype=float32",
)


@pytest.fixture
def tiny(project):
    """Two empty recipes, and the folder of a tiny Llama."""
    (project / "conf" / "recipe" / "of").mkdir()
    for name in ("first", "second"):
        (project / "conf" / "recipe" / "of" / f"{name}.yaml").write_text("# @package _global_\nseed: 1\n")
    make_tiny(project / "tiny")
    return project / "tiny"


def config(stage: str):
    from omegaconf import OmegaConf

    return OmegaConf.load(Path("run") / stage / "config.yaml")


def test_adapters_are_merged_and_the_next_stage_puts_new_ones_on_top(tiny):
    import torch
    from safetensors.torch import load_file

    summary = run(*WORDS, f"model.path={tiny}", "model.lora={rank: 2, alpha: 4}", 'over={2: ["optim.lr=0.02"]}')
    exported = Path("run") / FIRST / "export" / "step-000001"
    names = set(load_file(exported / "model.safetensors"))
    assert names == set(load_file(tiny / "model.safetensors")), "the layout of a plain model"
    # after - before of one matrix is the product of the saved adapter: (alpha / rank) B A = 2 B A
    saved = load_file(Path("run") / FIRST / "checkpoints" / "step-000001" / "backend" / "weights.safetensors")
    (a,) = [value for name, value in saved.items() if "layers.0.self_attn.q_proj.lora_A" in name]
    (b,) = [value for name, value in saved.items() if "layers.0.self_attn.q_proj.lora_B" in name]
    name = "model.layers.0.self_attn.q_proj.weight"
    moved = load_file(exported / "model.safetensors")[name] - load_file(tiny / "model.safetensors")[name]
    torch.testing.assert_close(moved, 2 * b @ a, atol=1e-6, rtol=1e-5)
    assert moved.abs().max() > 1e-4
    first, second = summary["stages"]
    assert first["eval_after"]["score"] == second["eval_before"]["score"] != first["eval_before"]["score"]
    assert (config(SECOND).model.lora.rank, config(SECOND).model.dtype) == (2, "float32")


def test_the_chat_template_goes_on(tiny):
    template = Path("words.jinja").absolute()
    template.write_text("{% for m in messages %}<{{ m['content'] }}>{% endfor %}")
    summary = run(*WORDS, f"model.path={tiny}", f"model.chat_template={template}")
    assert config(SECOND).model.chat_template == str(template)
    exported = Path("run") / FIRST / "export" / "step-000001"
    assert (exported / "chat_template.jinja").read_text() == template.read_text()
    assert summary["status"] == "finished"


def test_a_stage_in_a_process_of_its_own_is_the_one_that_followed_another(tiny):
    """Nothing but the weights goes from one to the next: no generator, no thread count, no adapter."""
    run(*WORDS, f"model.path={tiny}", "model.lora={rank: 2}", "checkpoint.every=1")
    before = digests(Path("run").absolute())
    shutil.rmtree(Path("run") / SECOND)
    trinity("run", "resume=run", cwd=Path.cwd())
    assert digests(Path("run").absolute()) == before
