"""What a run leaves at its end: the summary, the way on, and the bundle of a failure."""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from typing import Any

from trinity_core import __version__
from trinity_core.run.context import Run
from trinity_core.run.folder import write_json
from trinity_core.run.state import Training


def summarize(run: Run, training: Training | None, status: str, began: float, *, kept: bool = True) -> dict[str, Any]:
    """What ``summary.json`` holds. ``kept``: whether the folder stays (a start that fails leaves none)."""
    summary: dict[str, Any] = {
        "status": status,
        "id": run.id,
        "dir": str(run.dir),
        "mode": run.mode,
        "seed": run.seed,
        "steps": run.step,
        "groups": run.stored,
        "reward": run.last_reward,
        "train_seconds": round(run.clock.seconds, 3),
        "wall_seconds": round(time.time() - began, 3),
        "tokens_sampled": run.tokens_sampled,
        "versions": versions(),
    }
    if training is not None:
        evaluator = training.evaluator
        if run.mode == "bench":
            summary["bench"] = [entry for entry in evaluator.done if entry["step"] == run.step]
        else:
            summary["eval_before"] = evaluator.at(0)
            summary["eval_after"] = evaluator.at(run.step) if run.step else None
        summary["evaluations"] = evaluator.done
        if run.backend is not None and status == "finished":
            summary["weights_sha256"] = run.backend.digest()
    summary["next"] = way_on(run, status) if kept else []
    return summary


def way_on(run: Run, status: str) -> list[str]:
    """Commands that make sense now."""
    again = f"trinity run resume={run.dir}"
    if status != "finished":
        return [again]
    if run.mode == "explore":  # nothing is trained yet
        return [f"{again} mode=train", f"trinity audit {run.dir}"]
    if run.mode == "bench":
        export = [f"trinity export {run.dir} MODEL_DIR"] if run.step else []
        return [f"{again} mode=both", *export]
    steps = max(run.step, run.config.steps) * 2
    return [f"{again} steps={steps}", f"trinity export {run.dir} MODEL_DIR", f"trinity audit {run.dir}"]


def bundle(run: Run, training: Training | None, error: Exception) -> None:
    """``failure.json``: the error, where it happened, and the batch that was in hand."""
    cause = error.__cause__ or error
    with contextlib.suppress(OSError):  # a full disk must not hide the error that is being reported
        write_json(
            run.dir / "failure.json",
            {
                "error": str(error),
                "step": run.step + 1,
                "phase": [run.phase, run.phase_of_trainer],
                "groups": training.batch_ids if training else [],
                "traceback": traceback.format_exception(cause),
            },
        )


def versions() -> dict[str, str]:
    """Versions of what computes."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": sys.version.split()[0], "trinity-core": __version__}
    for name in ("torch", "transformers", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
