"""Opening the parts of a run, in the fixed order; a resumed run takes up its checkpoint on the way."""

from __future__ import annotations

from trinity_core.config.plain import to_plain
from trinity_core.errors import ConfigError
from trinity_core.protocols import Position
from trinity_core.rollout.operate import Operators
from trinity_core.rollout.scheduler import Scheduler
from trinity_core.rollout.score import Scorer
from trinity_core.run import checkpoint
from trinity_core.run.context import Run
from trinity_core.run.plan import plan_of
from trinity_core.run.state import Training

EXPLORED = "explored"
"""The ledger's word for the step whose weights an explorer alone has last played with and, once training began, for the places that
were given up until then."""


async def open_parts(run: Run) -> Training:
    """Open every part in the fixed order: trackers, buffer, backend, engine, models, tasksets, selector, workflow,
    rewards, operators, strategy. A resumed run takes up its checkpoint on the way."""
    config = run.config
    for slot, part in config.slots("trackers").items():
        run.trackers[slot] = run.open(f"trackers.{slot}", part.component)
    run.ledger = run.open("buffer", config.part("buffer"))
    run.backend = run.open("backend", config.part("backend"))
    run.use_tokenizer(run.backend.tokenizer)
    if config.part("engine") is not None and (config.mode != "train" or config.slots("eval.tasksets")):
        run.engine = run.open("engine", config.part("engine"))
        if run.engine.tokenizer.digest() != run.tokenizer.digest():
            raise ConfigError(
                "engine: its tokenizer or chat template is not the backend's; tokens would mean two things"
            )
    open_play(run)
    run.open("sample_strategy", config.part("sample_strategy"))
    training = Training(run)
    position = take_up(run, training) if config.resume else None
    explored = what_was_explored(run) if config.resume else None
    run.ledger.begin(explored or position, ordered=run.gate.ordered)
    run.ledger.say("status", "running")
    if config.mode == "explore":
        run.ledger.say(EXPLORED, str(run.step))
    elif explored is not None:
        run.ledger.say(EXPLORED, f"{run.step} {explored.given_up}")
    plan = plan_of(run)
    run.tell(
        "started",
        {
            "id": run.id,
            "dir": str(run.dir),
            "mode": run.mode,
            "config": to_plain(config),
            "plan": plan,
            "resumed": bool(config.resume),
            "step": run.step,
            "steps": config.steps,
        },
    )
    if run.engine is not None and not run.renderer.keeps_prefix():
        run.tell(
            "warned", "this chat template does not keep the prefix property: each turn becomes an experience of its own"
        )
    for change in run.manifest_changes:
        run.tell("warned", change)
    if explored is not None and run.gate.ordered and config.mode in ("both", "train"):
        run.tell(
            "warned",
            f"what was played before has version {run.step}: step n trains it n - {run.step + 1} steps late, beyond what sync "
            f"allows after step {run.gate.allowed(run.step) + 1}. correction=[truncated_is] corrects for it; trinity audit will "
            "list it",
        )
    return training


def what_was_explored(run: Run) -> Position | None:
    """Where the run stands behind what an explorer alone has played with its present weights: that is there to be trained on, until a
    checkpoint has seen it trained. ``None`` where there is nothing of it."""
    step, _, given_up = (run.ledger.heard(EXPLORED) or "").partition(" ")
    if step != str(run.step):
        return None
    at = run.ledger.position(run.step + 1)
    return Position(run.step, at.draw, int(given_up or at.given_up))


def take_up(run: Run, training: Training) -> Position:
    """Load the newest checkpoint of a run that is resumed; where the run stands then in its ledger."""
    assert run.backend is not None
    resumed = checkpoint.newest(run.dir / "checkpoints")
    if resumed is None:
        return Position(step=0, draw=0, given_up=0)  # it stopped before its first checkpoint
    state = checkpoint.load_state(resumed)
    run.backend.load(resumed / checkpoint.BACKEND)
    return training.restore(state)


def open_play(run: Run) -> None:
    """What playing needs: tasksets, selector, workflow, rewards, operators; no engine, no play."""
    config = run.config
    for slot, part in config.slots("models").items():
        role = slot.removesuffix(".engine")
        run.models[role] = run.open(f"models.{slot}", part.component)
    open_tasks(run)
    if run.engine is None:
        return
    run.selector = run.open("selector", config.part("selector"))
    workflow = run.open("workflow", config.part("workflow"))
    scorer = Scorer(config.slots("rewards"), run, config.explorer.reward_workers, open_live=run.open)
    run.closing("rewards", scorer.close)
    operators = {slot: part.component for slot, part in config.slots("operators").items()}
    run.operators = {slot: run.open(f"operators.{slot}", component) for slot, component in operators.items()}
    run.operating = Operators(operators, run.operators, scorer.pool)
    run.scheduler = Scheduler(
        run,
        workflow,
        config.part("environment"),
        run.engine,
        scorer,
        run.tasksets,
        waves="waves" in config.part("engine").capabilities,
        on_tokens=run.count_tokens,
        on_warning=lambda text: run.tell("warned", text),
    )
    run.closing("scheduler", run.scheduler.close)


def open_tasks(run: Run) -> None:
    """The tasksets, those of evaluations first."""
    for slot, part in run.config.slots("eval.tasksets").items():
        run.eval_tasksets[slot] = run.open(f"eval.tasksets.{slot}", part.component)
    for slot, part in run.config.slots("tasksets").items():
        run.tasksets[slot] = run.open(f"tasksets.{slot}", part.component)
        run.sizes[slot] = len(run.tasksets[slot])
        run.weights[slot] = part.slot.weight if part.slot else 1.0
