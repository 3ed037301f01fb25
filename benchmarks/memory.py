"""Whether a run's memory grows: the slope of resident memory over its steps, in MB a step.

Runs ``trinity run`` in a process of its own and looks at the resident memory of it and its children (reward workers) at
each line of ``metrics.jsonl``. The first steps are left out: allocators are still filling up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import common
import numpy as np

LIMIT_MB = 1.0
WARM_UP = 10


def steps_done(metrics: Path) -> int:
    """Training steps in ``metrics.jsonl``."""
    if not metrics.exists():
        return 0
    events = [json.loads(line) for line in metrics.read_text().splitlines() if line.endswith("}")]
    return sum(event.get("event") == "step" for event in events)


def sample(words: Sequence[str], out: Path) -> list[tuple[int, float]]:
    """(step, MB) at the end of each step."""
    command = [sys.executable, "-m", "trinity_core.cli", "run", *words, f"out={out}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    samples: list[tuple[int, float]] = []
    while process.poll() is None:
        done = steps_done(out / "metrics.jsonl")
        if done > (samples[-1][0] if samples else 0):
            samples.append((done, common.rss_mb(process.pid)))
            print(f"step {done:3}  {samples[-1][1]:8.1f} MB", flush=True)
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"the run failed: {' '.join(command)}")
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("words", nargs="*", help="more words for the run")
    options = parser.parse_args()
    words = [
        f"recipe={options.recipe}",
        f"steps={options.steps}",
        "eval.before=false",
        "eval.after=false",
        "eval.every=0",
    ]
    with tempfile.TemporaryDirectory() as folder:
        samples = sample([*words, *options.words], Path(folder) / "run")
    kept = np.array([pair for pair in samples if pair[0] > WARM_UP])
    if len(kept) < 10:
        raise SystemExit(f"{len(kept)} samples after step {WARM_UP}: run more steps")
    slope, _ = np.polyfit(kept[:, 0], kept[:, 1], 1)
    figures = {
        "mb_per_step": float(slope),
        f"step_{WARM_UP + 1}_mb": kept[0, 1],
        f"step_{options.steps}_mb": kept[-1, 1],
    }
    notes = [f"the slope of a line through steps {WARM_UP + 1} to {options.steps} of recipe={options.recipe}"]
    common.finish("memory", figures, {"mb_per_step": f"< {LIMIT_MB}"}, notes=notes)


if __name__ == "__main__":
    main()
