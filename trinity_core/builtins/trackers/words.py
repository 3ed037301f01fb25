"""The words of the console: numbers a person reads at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("reward", ("reward/mean",), "{:.3f}"),
    ("±", ("reward/std",), "{:.3f}"),
    ("loss", ("loss",), "{:.4f}"),
    ("length", ("response/length",), "{:.0f}"),
    ("kl", ("kl/ref", "kl/sampler", "kl/old"), "{:.4f}"),
    ("grad", ("grad_norm",), "{:.3g}"),
    ("lr", ("lr",), "{:.2g}"),
    ("stale", ("staleness/max",), "{:.0f}"),
)
"""Word, the metrics it may stand for (the first that was logged), how it is written."""


def step_line(step: int, metrics: Mapping[str, float]) -> str:
    """One step in one line: what it learned from, how far it moved, how long it took."""
    words = [f"step {step:>4}"]
    for word, names, form in COLUMNS:
        found = next((name for name in names if name in metrics), None)
        # a policy's loss says little beside its reward; where nothing was scored it is what there is to watch
        silent = word == "loss" and "reward/mean" in metrics
        # zero staleness is the normal case and says nothing
        if found is not None and not silent and not (word == "stale" and metrics[found] == 0):
            named = word if found == names[0] else f"{word}({found.rpartition('/')[2]})"
            words.append(f"{named} {unsigned_zero(form.format(metrics[found]))}")
    seconds, waited = metrics.get("time/step_s"), metrics.get("time/wait_s")
    if seconds is not None:
        words.append(f"{seconds:.1f} s" if waited is None else f"{seconds - waited:.1f} s + {waited:.1f} s waiting")
        if seconds > 0 and "tokens/trained" in metrics:
            words.append(f"{metrics['tokens/trained'] / seconds:,.0f} tok/s trained")
    return "  ".join(words)


def progress_line(state: Mapping[str, Any], *, seconds: float, reward: float | None, left: float | None) -> str:
    """Where the run is now."""
    words = [clock(seconds), str(state.get("phase", ""))]
    if state.get("steps"):
        words.append(f"step {min(int(state.get('step', 0)) + 1, int(state['steps']))}/{state['steps']}")
    for key, word in (("groups", "groups"), ("attempts", "samples"), ("tokens", "tokens")):
        if key in state:
            words.append(f"{state[key]:,} {word}")
    words.append(f"{state.get('tokens_per_s', 0.0):,.0f} tok/s")
    if reward is not None:
        words.append(f"reward {unsigned_zero(f'{reward:.3f}')}")
    if left is not None:
        words.append(f"{clock(left)} left")
    return "  ".join(word for word in words if word)


def clock(seconds: float) -> str:
    """``7s``, ``3m07s``, ``2h05m``."""
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def number(value: Any) -> str:
    """Thousands separated; floats in six digits; everything else as it prints."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def unsigned_zero(text: str) -> str:
    """``0.000`` for ``-0.000``: a number that rounds to nothing has no sign."""
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The table at the end: what this mode did. (An error is not in it: whoever started the run says it, once.)"""
    mode = summary.get("mode")
    rows: list[tuple[str, Any]] = []
    if mode == "explore":
        rows.append(("groups stored", summary.get("groups", 0)))
    else:
        rows.append(("steps", summary.get("steps", 0)))
    if mode == "bench":
        rows += [(f"accuracy {one.get('taskset', '')}", accuracy(one)) for one in summary.get("bench") or []]
    elif mode != "explore" and "train_seconds" in summary:
        rows.append(("time training", clock(float(summary["train_seconds"]))))
    for key, label in (("eval_before", "accuracy before"), ("eval_after", "accuracy after")):
        if summary.get(key):
            rows.append((label, accuracy(summary[key])))
    return rows + [(key, str(summary[key])) for key in ("seed", "weights_sha256") if summary.get(key) is not None]


def accuracy(result: Mapping[str, Any]) -> str:
    """``0.913  95 % 0.866 … 0.946  n = 200``, with whatever else was counted; ``none`` where nothing had a score."""
    line = "none" if result.get("accuracy") is None else f"{result['accuracy']:.3f}"
    if result.get("ci_low") is not None and result.get("ci_high") is not None:
        line += f"  95 % {result['ci_low']:.3f} … {result['ci_high']:.3f}"
    if "n" in result:
        line += f"  n = {result['n']}"
    if result.get("unscored"):
        line += f"  ({result['unscored']} without a score)"
    return line + "".join(f"  {name} {result[name]:.3f}" for name in result if name.startswith(("pass@", "maj@")))
