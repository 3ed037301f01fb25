"""Whether ``trinity plan`` is right: its peak memory and seconds a step beside those of a run with the same words.

Each is a process of its own, one after the other: first the plan, then the run, for SmolLM2 (the quickstart) and for a tiny
random model. Memory is the highest resident set of each process of the tree, added up; a step's seconds are from the end
of the one before to its own, the median over the run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import finish, last_json, median, quiet_or_warn, tree

MEMORY_LIMIT, STEP_LIMIT = 0.15, 0.25
LOOK_S = 0.05
LETTERS = "trinity_core.testing.fakes:Letters"
QUIET = ("eval.before=false", "eval.after=false", "eval.every=0", "checkpoint.every=4")


def highest_mb(pid: int) -> float:
    """The highest resident set that a process has had, in MB; 0 once it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    found = [line for line in text.splitlines() if line.startswith("VmHWM")]
    return int(found[0].split()[1]) / 1024 if found else 0.0


def watched(words: Sequence[str]) -> tuple[str, float]:
    """What a command prints, and the peak MB of its process tree."""
    peaks: dict[int, float] = {}
    with tempfile.TemporaryFile("w+") as kept:
        process = subprocess.Popen([sys.executable, "-m", "trinity_core.cli", *words], stdout=kept, text=True)
        while process.poll() is None:
            for pid in tree(process.pid):
                peaks[pid] = max(peaks.get(pid, 0.0), highest_mb(pid))
            time.sleep(LOOK_S)
        if process.returncode:
            raise SystemExit(f"exit status {process.returncode}: trinity {' '.join(words)}")
        kept.seek(0)
        return kept.read(), sum(peaks.values())


def ran(words: Sequence[str], folder: Path) -> tuple[float, float]:
    """Peak MB and median seconds a step of a run."""
    _, peak = watched(["run", *words, f"out={folder}", "~trackers.console"])
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    times = [event["time"] for event in steps]
    print(
        f"MB at the end of each step {[round(event['memory/rss_mb']) for event in steps]}, at the end {peak:.0f}",
        file=sys.stderr,
    )
    return peak, median(after - before for before, after in itertools.pairwise(times))


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in figures.items()}


def compare(name: str, words: Sequence[str], folder: Path) -> dict[str, float]:
    """Estimated and measured, and how far apart they are, as a share of what was measured."""
    said, _ = watched(["plan", *words, "--json"])
    plan = last_json(said)
    print(f"{name}: planned MB {rounded(plan['memory_mb'])}, s {rounded(plan['seconds'])}", file=sys.stderr)
    print(f"{name}: steps of the plan {plan['measured']['step_s']}", file=sys.stderr)
    peak_mb, step_s = ran(words, folder / "run")
    planned_mb, planned_s = plan["memory_mb"]["peak"], plan["seconds"]["step"]
    return {
        f"{name}_planned_peak_mb": planned_mb,
        f"{name}_measured_peak_mb": peak_mb,
        f"{name}_memory_off": abs(planned_mb - peak_mb) / peak_mb,
        f"{name}_planned_step_s": planned_s,
        f"{name}_measured_step_s": step_s,
        f"{name}_step_off": abs(planned_s - step_s) / step_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="steps of the quickstart's run")
    parser.add_argument("--tiny-steps", type=int, default=40, help="steps of the tiny model's run")
    parser.add_argument("--only", choices=("quickstart", "tiny"), help="one of the two models")
    parser.add_argument("words", nargs="*", help="more words for both")
    options = parser.parse_args()
    busy, figures = quiet_or_warn(), {}
    for name, steps in (("tiny", options.tiny_steps), ("quickstart", options.steps)):
        if options.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            words = ["recipe=quickstart", f"steps={steps}", *QUIET, *options.words]
            if name == "tiny":
                from trinity_core.testing.tiny import make_tiny

                # a reward that any text gets: with one that none gets nothing would be trained
                words += [
                    f"model.path={make_tiny(Path(folder) / 'model')}",
                    "reward=[]",
                    f"+reward@rewards.letters={LETTERS}",
                ]
            figures |= compare(name, words, Path(folder))
    limits = {
        figure: f"<= {MEMORY_LIMIT if 'memory' in figure else STEP_LIMIT}"
        for figure in figures
        if figure.endswith("_off")
    }
    finish(
        "plan",
        figures,
        limits,
        notes=[
            f"median of {options.steps - 1} steps of the quickstart, {options.tiny_steps - 1} of the tiny model; evaluations off"
        ],
        busy=busy,
    )


if __name__ == "__main__":
    main()
