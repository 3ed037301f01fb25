"""An estimate in words: the sections that ``trinity plan`` prints."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity_core.config.schema import RunConfig
    from trinity_core.run.estimate import Estimate

Sections = list[tuple[str, list[tuple[str, str]]]]
PHASES = (
    ("load", "loading"),
    ("sampling", "sampling"),
    ("training", "training"),
    ("checkpoint", "checkpoint"),
    ("evaluation", "evaluation"),
    ("between", "between these"),
    ("processes", "reward processes"),
)


def sections(config: RunConfig, found: Estimate, *, dry: bool, nothing: str = "") -> Sections:
    """Everything, in order: plan, a step counted, keys, time, memory, how it was measured. ``nothing``: why there is nothing
    to do, in place of all that follows the plan."""
    parts: Sections = [(name, [(label, _number(value)) for label, value in rows]) for name, rows in found.plan.items()]
    if nothing:
        return [*parts, ("left", [("nothing", nothing)])]
    if counted := _counted(found):
        parts.append(("a step, counted", counted))
    parts.append(("sizes", [(f"{key}={value}", meaning) for key, value, meaning in found.keys]))
    if dry:
        parts.append(
            (
                "time, memory",
                [("not estimated", "--dry opens no model and plays nothing; without it a few tasks are played")],
            )
        )
        return parts
    parts.append(("time", _time(config, found)))
    parts.append(("memory", _memory(found.memory_mb)))
    if found.gpu_mb:
        parts.append(("GPU memory", _memory(found.gpu_mb)))
    parts.append(("how", _how(config, found)))
    return parts


def _counted(found: Estimate) -> list[tuple[str, str]]:
    count, rows = found.counted, []
    if "prompt_mean" in count:
        rows.append(
            (
                "prompts",
                f"{count['prompt_mean']:,.0f} tokens each, the longest {count['prompt_longest']:,}; {count['prompt_alike']:,} that all begin with",
            )
        )
    if "response_mean" in count:
        rows.append(
            (
                "responses",
                f"{count['response_mean']:,.1f} tokens each, the longest {count['response_longest']:,}; at most {count['response_limit']:,}",
            )
        )
    if "tokens" in count:
        rows.append(
            (
                "tokens",
                f"{count['tokens']:,} in {count['sequences']:,} sequences: {count['prompts']:,} of prompts, {count['responses']:,} of responses",
            )
        )
        less = 1 - count["computed"] / max(1, count["tokens"])
        if found.measured.get("shares_prefix"):
            how = f"{count['computed']:,}, {less:.0%} less: what sequences begin with alike is computed once"
        else:
            how = f"{count['computed']:,}: every prompt is computed once for each sequence (see shared_prefixes)"
        rows.append(("computed", how))
    return rows


def _time(config: RunConfig, found: Estimate) -> list[tuple[str, str]]:
    took, count = found.seconds, found.counted
    rows = [("start", f"{_s(took['start'])}: model, engine, tasks")]
    if "step" in took:
        parts = [f"{name} {_s(took[name])}" for name in ("sampling", "training", "rest")]
        rows.append(("a step", f"{_s(took['step'])} = {' + '.join(parts)}"))
    if "step_worst" in took:
        rows.append(
            (
                "at worst",
                f"{_s(took['step_worst'])} a step, were every response {count['response_limit']:,} tokens long and no group skipped",
            )
        )
    if "evaluation" in took:
        rows.append(("an evaluation", _s(took["evaluation"])))
    if "checkpoint" in took:
        rows.append(
            ("a checkpoint", f"{_s(took['checkpoint'])}, for {_s(took['checkpoint_wait'])} of which a step waits")
        )
    terms = ["start"]
    if config.mode == "explore":
        terms.append(f"{count['steps']:,} × sampling")
    elif config.mode != "bench":
        terms.append(f"{count['steps']:,} steps")
    for name in ("evaluation", "checkpoint"):
        number = 1 if config.mode == "bench" and name == "evaluation" else count.get(f"{name}s", 0)
        if number and name in took:
            terms.append(f"{number:,} {name}{'s' if number > 1 else ''}")
    rows.append(("the run", f"{_clock(took['run'])} = {' + '.join(terms)}"))
    return rows


def _memory(mb: Mapping[str, float]) -> list[tuple[str, str]]:
    rows = [(label, f"{mb[name]:,.0f} MB") for name, label in PHASES if mb.get(name)]
    rows.append(
        ("peak", f"{mb['peak']:,.0f} MB of {mb['room']:,.0f} MB that are there{_verdict(mb['peak'], mb['room'])}")
    )
    if "peak_worst" in mb:
        rows.append(
            (
                "at worst",
                f"{mb['peak_worst']:,.0f} MB, were every response as long as it may be{_verdict(mb['peak_worst'], mb['room'])}",
            )
        )
    return rows


def _verdict(needed: float, room: float) -> str:
    return ": it does not fit. Lower backend.micro_tokens or explorer.wave" if needed > room else ""


def _how(config: RunConfig, found: Estimate) -> list[tuple[str, str]]:
    how = found.measured
    rows = []
    if how["steps"]:
        scaled = (
            "" if how["groups"] >= config.groups_per_step else f", scaled to the {config.groups_per_step} of a step"
        )
        rows.append(("measured", f"{how['steps']} steps of {how['groups']} groups{scaled}"))
    rows.append(("played", f"{how['tasks']:,} tasks for real; nothing that was learned is kept{_charged(config)}"))
    if how["live"] < 1:
        rows.append(
            (
                "skipped",
                f"{1 - how['live']:.0%} of the tokens of updates: groups whose scores are all the same teach nothing. As more of them differ a step takes longer",
            )
        )
    if how["left_out"]:
        rows.append(
            (
                "not asked",
                f"operators.{', operators.'.join(how['left_out'])}: what they drop and how long they take is not in these numbers",
            )
        )
    if how["too_large"]:
        rows.append(("extrapolated", "an update of this size does not fit in memory and was not tried"))
    if config.mode in ("train", "explore"):
        rows.append(
            (
                "one process",
                "explorer and trainer were measured together; in processes of their own each needs less, and time is the slower one's",
            )
        )
    return rows


def _charged(config: RunConfig) -> str:
    """A word about services, where something may have called one."""
    waiting = [
        f"rewards.{slot}"
        for slot, part in config.slots("rewards").items()
        if inspect.iscoroutinefunction(type(part.component).__call__)
    ]
    waiting += [path for path in config.parts if path.startswith("models.") or path == "environment"]
    return (
        f". {', '.join(waiting)} took part: what they call may have cost something (--dry plays nothing)"
        if waiting
        else ""
    )


def _s(seconds: float) -> str:
    """With enough digits that parts, as they are printed, add up to their sum."""
    digits = 3 if seconds < 1 else 2 if seconds < 10 else 1
    return f"{seconds:,.{digits}f} s"


def _clock(seconds: float) -> str:
    """``7.1 s``, ``3 min``, ``2 h 05 min``."""
    if seconds < 120:
        return _s(seconds)
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def _number(value: Any) -> str:
    """As a run's own plan writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
