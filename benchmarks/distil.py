"""Distillation from a trained student back into the base: held-out accuracy before and after, on the quickstart's task.

``python benchmarks/distil.py --teacher RUN [--presets on_policy_distill,jsd] --out DIR`` exports the policy of a finished run, takes
it for the teacher of fresh runs of the same recipe (seed 1), and prints a table. SmolLM2, two CPU cores, a few minutes each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

TRINITY = [sys.executable, "-m", "trinity_core.cli"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", type=Path, required=True, help="folder of a finished run")
    parser.add_argument("--presets", default="on_policy_distill,jsd")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/distil"))
    given = parser.parse_args()
    model = given.out / "teacher"
    if not model.exists():
        subprocess.run([*TRINITY, "export", str(given.teacher), str(model)], check=True, stdout=sys.stderr)
    taught = json.loads((given.teacher / "summary.json").read_text())["eval_after"]["accuracy"]
    print(
        "| preset | steps | teacher | before | after (95 % interval) | seconds of training |\n|---|---|---|---|---|---|"
    )
    for preset in given.presets.split(","):
        folder = given.out / preset
        words = [f"algorithm={preset}", f"teacher.path={model}", "seed=1", f"steps={given.steps}", "eval.every=0"]
        # one attempt a task and no shared prompt: eight tasks a step are eight samples
        words += ["algorithm.group_size=4", f"out={folder}"]
        if not (folder / "summary.json").is_file():
            subprocess.run([*TRINITY, "run", "recipe=quickstart", *words], check=True, stdout=sys.stderr)
        summary = json.loads((folder / "summary.json").read_text())
        before, after = summary["eval_before"]["accuracy"], summary["eval_after"]
        interval = f"{after['accuracy']:.3f} ({after['ci_low']:.3f}-{after['ci_high']:.3f})"
        seconds = f"{summary['train_seconds']:.0f}"
        print(f"| {preset} | {given.steps} | {taught:.3f} | {before:.3f} | {interval} | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
