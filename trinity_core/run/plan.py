"""The plan that every run prints first: what will be done, in numbers, before anything is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trinity_core.run.leasing import joining

if TYPE_CHECKING:
    from trinity_core.config.schema import RunConfig
    from trinity_core.protocols import Taskset
    from trinity_core.run.context import Run


def plan_of(
    run: Run, config: RunConfig | None = None, *, folder: str | None = None
) -> dict[str, list[tuple[str, Any]]]:
    """Sections of ``(label, value)``. Prompts × attempts = samples, so that nobody has to guess what a batch counts; of a run
    whose tasks bring all their attempts along, that nothing is sampled. ``config`` and ``folder``: of the run that is planned,
    where ``run`` is a trial of it."""
    config, folder = config or run.config, folder or str(run.dir)
    algorithm, optim, sampling = config.algorithm, config.optim, config.sampling
    loss = config.part("loss")
    limit = sampling.max_attempt_tokens or sampling.max_response
    samples = config.groups_per_step * algorithm.group_size
    gives = {slot: ", ".join(sorted(part.component.gives())) for slot, part in config.slots("tasksets").items()}
    plays = not gives or not all(gives.values())
    warmup = f" after {how_many(optim.warmup_updates, 'update')} of warm-up" if optim.warmup_updates else ""
    described = run.backend.describe() if run.backend is not None else {}
    model = [("path", config.model.path), *described.items()]
    if config.mode == "bench":
        return {"model": model, **_bench(run, folder)}
    plan: dict[str, list[tuple[str, Any]]] = {
        "model": model,
        "algorithm": [
            ("preset", algorithm.preset),
            ("advantage", _name(run, "advantage")),
            ("loss", f"{_name(run, 'loss')}, {algorithm.reduction or loss.reduction} by {algorithm.by}"),
            ("corrections", ", ".join(part.name for part in config.slots("corrections").values()) or "none"),
        ],
        "a step": [
            (
                "samples",
                f"{how_many(config.groups_per_step, 'task')} × {how_many(algorithm.group_size, 'attempt')} = {samples}",
            )
            if plays
            else ("tasks", f"{config.groups_per_step}, with what they give: nothing is sampled"),
            (
                "updates",
                f"{how_many(optim.epochs, 'epoch')} × {how_many(optim.mini_batches, 'mini-batch', 'mini-batches')} = {optim.epochs * optim.mini_batches}",
            ),
            *([("tokens", f"at most {samples * limit:,} sampled")] if plays else []),
            ("lr", f"{optim.lr:g}, {optim.schedule}{warmup}"),
        ],
        "the run": [
            ("mode", config.mode),
            ("steps", f"{run.step} → {config.steps}" if run.step else config.steps),
            ("tasks", ", ".join(_tasks(slot, size, gives.get(slot, "")) for slot, size in run.sizes.items()) or "none"),
            ("rewards", ", ".join(config.slots("rewards")) or "the workflow's own"),
            (
                "evaluation",
                ", ".join(f"{slot} ({_rows(run, tasks):,})" for slot, tasks in run.eval_tasksets.items()) or "none",
            ),
            ("sync", _sync(config)),
            ("folder", folder),
        ],
    }
    if run.mode == "train":
        plan["the run"].append(("explorers", joining(run)))
    return plan


def _bench(run: Run, folder: str) -> dict[str, list[tuple[str, Any]]]:
    """An evaluation trains nothing: only what is played."""
    config = run.config
    tasks = [(slot, f"{_rows(run, tasks):,} tasks") for slot, tasks in run.eval_tasksets.items()]
    return {
        "evaluation": [
            *tasks,
            ("attempts", config.eval.attempts),
            ("temperature", config.eval.temperature),
            ("rewards", ", ".join(config.slots("rewards")) or "the workflow's own"),
        ],
        "the run": [("mode", "bench"), ("step", run.step), ("folder", folder)],
    }


def _tasks(slot: str, size: int, gives: str) -> str:
    return f"{slot} ({size:,} with {gives})" if gives else f"{slot} ({size:,})"


def _rows(run: Run, tasks: Taskset) -> int:
    limit = run.config.eval.limit
    return len(tasks) if limit is None else min(limit, len(tasks))


def _name(run: Run, path: str) -> str:
    part = run.config.parts.get(path)
    return part.name if part else "none"


def how_many(number: int, one: str, many: str | None = None) -> str:
    """``1 task``, ``2 tasks``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _sync(config: RunConfig) -> str:
    sync = config.sync
    if sync.mode == "async":
        return f"asynchronous, staleness at most {sync.max_staleness}"
    return f"ordered, every {'step' if sync.interval == 1 else f'{sync.interval} steps'}, {sync.offset} ahead"
