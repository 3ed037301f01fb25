"""Each preset on the quickstart's task: held-out accuracy before and after, and seconds, one run after the other.

``python benchmarks/presets.py --presets grpo,rloo --out DIR`` trains SmolLM2 to name the largest of three numbers (recipe
``quickstart``, seed 0, 40 steps; ppo 80) and prints a table. A folder that holds a finished run is not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

PRESETS = "grpo,dr_grpo,rloo,reinforce_pp,gspo,cispo,opmd,ppo"
WORDS = {"ppo": ["steps=80", "algorithm.group_size=8", "critic.lr=1e-4"]}
"""What a preset needs beside its name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default=PRESETS)
    parser.add_argument("--out", type=Path, default=Path("runs/presets"))
    parser.add_argument("--seed", type=int, default=0)
    given, words = parser.parse_known_args()
    rows = []
    for preset in given.presets.split(","):
        folder = given.out / preset
        if not (folder / "summary.json").is_file():
            run = ["run", "recipe=quickstart", f"algorithm={preset}", f"seed={given.seed}", f"out={folder}"]
            command = [sys.executable, "-m", "trinity_core.cli", *run, *WORDS.get(preset, []), *words]
            print(" ".join(command[2:]), file=sys.stderr, flush=True)
            with (given.out.parent / f"{preset}.log").open("w") as log:
                subprocess.run(command, check=True, stdout=log, stderr=log)
        rows.append((preset, json.loads((folder / "summary.json").read_text())))
        print(row(*rows[-1]), file=sys.stderr, flush=True)
    print("| preset | steps | before (95 % interval) | after | seconds of training |\n|---|---|---|---|---|")
    print("\n".join(row(*one) for one in rows))


def row(preset: str, summary: dict) -> str:
    before, after = (shown(summary.get(moment)) for moment in ("eval_before", "eval_after"))
    return f"| {preset} | {summary['steps']} | {before} | {after} | {summary['train_seconds']:.0f} |"


def shown(evaluation: dict | None) -> str:
    """Accuracy with its interval; a dash where the words turned the evaluation off."""
    if not evaluation:
        return "-"
    return f"{evaluation['accuracy']:.3f} ({evaluation['ci_low']:.3f}-{evaluation['ci_high']:.3f})"


if __name__ == "__main__":
    main()
