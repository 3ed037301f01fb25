"""Tokens per second and model-FLOP utilisation on a CUDA device: training with backend ``local``, sampling with engine ``hf``.

Models of the shape of Qwen2.5-0.5B and -1.5B with random weights are made on the spot; nothing is downloaded. Training: measure,
credit, update as a run does (GRPO, 8 groups × 8, 512 prompt and 512 response tokens, AdamW, float32 weights, bfloat16 products).
Sampling: 64 prompts of 256 tokens, 128 new ones each, from the trainer's weights. Medians of five after one warm-up.

Utilisation is the FLOPs the model needs (a shared prompt once, the head on response tokens alone, backward twice forward) over
what the device could do: its data sheet where it is known, and its own best bfloat16 product of two 8192² matrices.
Without CUDA it says "not measured". ``--tiny --device cpu`` runs the same code on a small model.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np

PEAK_TFLOPS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "L4": 121, "4090": 165, "A10G": 70}
"""Dense bfloat16 TFLOP/s of the data sheet, by a part of the device's name; the first that fits."""


@dataclass(frozen=True)
class Shape:
    """A Qwen2 model, and what it is measured on."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int = 151936
    groups: int = 8
    attempts: int = 8
    prompt: int = 512
    response: int = 512
    rows: int = 64
    sampled_prompt: int = 256
    new: int = 128
    micro_tokens: int = 16384

    def flops(self, tokens: float, actions: float, pairs: float) -> float:
        """Of a forward pass: ``tokens`` through the layers, ``actions`` through the head, ``pairs`` of query and key."""
        size = self.hidden // self.heads
        linear = self.hidden * (2 * self.hidden + 2 * self.kv_heads * size) + 3 * self.hidden * self.inner
        return 2 * (
            self.layers * linear * tokens
            + self.hidden * self.vocabulary * actions
            + 2 * self.layers * self.hidden * pairs
        )

    @property
    def trained(self) -> dict[str, float]:
        """One update: tokens of all sequences, and FLOPs of forward and backward with each prompt computed once."""
        p, r, attempts = self.prompt, self.response, self.attempts
        forward = self.flops(p + attempts * r, attempts * r, p * p / 2 + attempts * r * (p + r / 2))
        return {"tokens": self.groups * attempts * (p + r), "flops": 3 * self.groups * forward}

    @property
    def sampled(self) -> dict[str, float]:
        """One wave of different prompts: new tokens, and FLOPs of prompt and reply."""
        p, n = self.sampled_prompt, self.new
        return {"tokens": self.rows * n, "flops": self.rows * self.flops(p + n, n, (p + n) ** 2 / 2)}


SHAPES = {
    "qwen_0b5": Shape(896, 4864, 24, 14, 2),
    "qwen_1b5": Shape(1536, 8960, 28, 12, 2),
}
TINY = Shape(64, 128, 2, 4, 2, 512, groups=2, attempts=4, prompt=24, response=8, rows=8, sampled_prompt=16, new=8)
FIGURES = ("train_tokens_per_s", "train_mfu", "train_peak_mb", "sample_tokens_per_s", "sample_mfu", "sample_peak_mb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(SHAPES))
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu with --tiny")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="a small model: checks this script, measures nothing")
    options = parser.parse_args()
    import torch

    shapes = {"tiny": TINY} if options.tiny else {name: SHAPES[name] for name in options.models.split(",")}
    on_cuda = options.device.startswith("cuda")
    if on_cuda and not torch.cuda.is_available():
        blank = {f"{name}_{figure}": None for name in shapes for figure in FIGURES}
        common.finish("gpu", blank, notes=["not measured: no CUDA device"])
    busy = common.quiet_or_warn()
    measured = best_tflops(options.device, 8192 if on_cuda else 1024)
    name = torch.cuda.get_device_name(options.device) if on_cuda else "cpu"
    sheet = next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)
    figures: dict[str, Any] = {"device": name, "matmul_tflops": measured, "data_sheet_tflops": sheet}
    notes = [
        f"medians of {options.repeats} after one warm-up; mfu: of the data sheet, mfm: of this device's best matmul"
    ]
    for key, shape in shapes.items():
        try:
            found = asyncio.run(one(shape, options.device, options.repeats))
        except torch.OutOfMemoryError as error:
            figures |= {f"{key}_{figure}": None for figure in FIGURES}
            notes.append(
                f"{key}: not measured, it does not fit into this device's memory ({str(error).splitlines()[0]})"
            )
            continue
        for what, work in (("train", shape.trained), ("sample", shape.sampled)):
            seconds = common.median(found[what])
            tflops = work["flops"] / seconds / 1e12
            figures |= {
                f"{key}_{what}_tokens_per_s": work["tokens"] / seconds,
                f"{key}_{what}_mfu": tflops / sheet if sheet else None,
                f"{key}_{what}_mfm": tflops / measured,
                f"{key}_{what}_peak_mb": found[f"{what}_peak_mb"],
            }
    common.finish("gpu", figures, notes=notes, busy=busy)


def best_tflops(device: str, size: int) -> float:
    """Best of twenty bfloat16 products of two square matrices."""
    import torch

    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(20):
        wait(device)
        begin = time.perf_counter()
        a @ b
        wait(device)
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best / 1e12


def wait(device: str) -> None:
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


async def one(shape: Shape, device: str, repeats: int) -> dict[str, Any]:
    """Seconds of each update and of each wave, and the peak memory of both."""
    import torch

    from trinity_core.config.check import check
    from trinity_core.config.compose import composer
    from trinity_core.run.context import Run

    def peak_mb() -> float | None:
        if not device.startswith("cuda"):
            return None
        peak = torch.cuda.max_memory_allocated(device) / 2**20
        torch.cuda.reset_peak_memory_stats(device)
        return peak

    with tempfile.TemporaryDirectory() as folder:
        model = make_model(shape, Path(folder) / "model", device)
        words = ["recipe=quickstart", f"model.path={model}", "model.dtype=bfloat16"]
        words += [f"backend.device={device}", f"backend.micro_tokens={shape.micro_tokens}"]
        words += [f"sampling.max_response={shape.response}"]
        with composer() as loader:
            config = check(loader.compose(words))
        run = Run(config, id="bench", dir=Path(folder))
        try:
            backend = run.open("backend", config.part("backend"))
            engine = run.open("engine", config.part("engine"))
            engine.tokenizer.eos_ids = frozenset()  # nothing ends a reply but its length
            peak_mb()
            train = [train_s(shape, run, backend, device, repeat) for repeat in range(repeats + 1)][1:]
            train_peak = peak_mb()
            sample = [await sample_s(shape, backend, engine, device, repeat) for repeat in range(repeats + 1)][1:]
            return {"train": train, "sample": sample, "train_peak_mb": train_peak, "sample_peak_mb": peak_mb()}
        finally:
            await run.end({})
            gc.collect()
            if device.startswith("cuda"):
                torch.cuda.empty_cache()


def train_s(shape: Shape, run: Any, backend: Any, device: str, repeat: int) -> float:
    """Seconds of one step of the trainer: measure, credit, update."""
    from trinity_core.run.credit import Algorithm, prepare, updates

    rng = np.random.default_rng(repeat)
    groups = [group(shape, rng, number) for number in range(shape.groups)]
    algorithm = Algorithm(run.config)
    wait(device)
    begin = time.perf_counter()
    prepared = prepare(algorithm, backend, groups, seed=0, step=repeat + 1)
    for update in updates(prepared, run.config):
        result = backend.update(update, "policy", algorithm.objective(repeat + 1), lr_scale=1.0)
        assert result.skipped is None, result.skipped
    wait(device)
    return time.perf_counter() - begin


async def sample_s(shape: Shape, backend: Any, engine: Any, device: str, repeat: int) -> float:
    """Seconds of one wave from the trainer's present weights."""
    from trinity_core.types import Key, Request, Sampling

    rng = np.random.default_rng(repeat)
    prompts = rng.integers(0, shape.vocabulary, (shape.rows, shape.sampled_prompt)).astype(np.int32)
    requests = [
        Request(Key("bench", row, repeat, 0), prompt, Sampling(max_tokens=shape.new), seed=repeat * shape.rows + row)
        for row, prompt in enumerate(prompts)
    ]
    await engine.load(backend.publish(repeat + 1, copy=False))
    wait(device)
    begin = time.perf_counter()
    completions = await engine.generate_wave(requests)
    wait(device)
    taken = time.perf_counter() - begin
    assert [len(completion.tokens_N) for completion in completions] == [shape.new] * shape.rows
    return taken


def group(shape: Shape, rng: np.random.Generator, number: int) -> Any:
    """Attempts at one prompt as play leaves them, random tokens; every other attempt is right."""
    from trinity_core.types import Attempt, Call, Experience, Group, Ok, Origin, Sampling, Task

    task = Task(f"task-{number}", ({"role": "user", "content": "?"},), "0")
    length = shape.prompt + shape.response
    prompt = rng.integers(0, shape.vocabulary, shape.prompt)
    attempts = []
    for index in range(shape.attempts):
        reply = rng.integers(0, shape.vocabulary, shape.response)
        origin_T = np.repeat(np.array([Origin.CONTEXT, Origin.SAMPLED], np.uint8), (shape.prompt, shape.response))
        logp_T = np.full(length, -np.log(shape.vocabulary), np.float32)
        logp_T[: shape.prompt] = np.nan
        call = Call(shape.prompt, length, 0, [(0, shape.prompt)], Sampling(max_tokens=shape.response))
        experience = Experience(np.concatenate([prompt, reply]).astype(np.int32), origin_T, logp_T, [call])
        attempts.append(Attempt([experience], score=Ok(float(index % 2)), index=index, task=task))
    return Group(f"bench/{number}", task, attempts, slot="bench", row=number, draw=number)


def make_model(shape: Shape, folder: Path, device: str) -> Path:
    """A model folder with random weights, and the byte tokenizer of the tiny model."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from trinity_core.testing.tiny import make_tiny

    make_tiny(folder)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        eos_token_id=2,
        bos_token_id=None,
    )
    with torch.device(device):  # random numbers for a billion weights are slow on a CPU
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen2"
    return folder


if __name__ == "__main__":
    main()
