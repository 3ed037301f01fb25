"""Whether a run's memory grows: the slope of resident memory over its steps, in MB a step.

Runs ``trinity run`` in a process of its own and samples ``/proc/<pid>/status`` of it and its children (reward workers) at
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

import numpy as np

LIMIT_MB = 1.0
WARM_UP = 10


def resident_mb(pid: int) -> float:
    """Resident memory of a process and everything it started."""
    total = 0.0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        if pid in (int(fields["Pid"]), int(fields["PPid"])):
            total += float(fields.get("VmRSS", "0 kB").split()[0]) / 1024
    return total


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
            samples.append((done, resident_mb(process.pid)))
            print(f"step {done:3}  {samples[-1][1]:8.1f} MB", flush=True)
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"the run failed: {' '.join(command)}")
    return samples


def main() -> int:
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
    result = {
        "steps": options.steps,
        "mb_per_step": round(float(slope), 3),
        "first_mb": kept[0, 1],
        "last_mb": kept[-1, 1],
    }
    print(json.dumps({"memory": result}))
    return int(slope >= LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
