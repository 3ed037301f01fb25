"""From played attempts to scores: several weighted rewards, each in its own process or on the loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from trinity_core.codec import pack
from trinity_core.config.schema import Part, RewardSlot
from trinity_core.errors import ConfigError, RunError
from trinity_core.protocols import Reward, RunContext
from trinity_core.rollout.outcome import InWorker, as_score, as_scores, broke, from_wire, traceback_of
from trinity_core.rollout.pool import Method, Pool, Spec
from trinity_core.types import Attempt, Fault, Group, Invalid, Ok, Score

BROKEN = 16
"""Attempts in a row from the start, all faults: the reward is broken, not the answers, and the run stops with its reason."""
WORKFLOW = "workflow"
"""Name of the part that a workflow's own reward is."""


def overrides(component: object, base: type, name: str) -> bool:
    """Whether the component's class defines ``name`` itself."""
    return getattr(type(component), name) is not getattr(base, name)


@dataclass
class Judge:
    """One slot of ``rewards``, ready to score."""

    slot: str
    keys: RewardSlot
    method: Method
    spec: Spec | None
    """Set if it computes in a process."""
    live: Any
    """Set if it waits on the loop: what ``open`` gave it."""
    timeout_s: float
    only_faults: int = 0
    """Faults so far, while there was nothing else; -1 once there was."""
    trace: str = ""
    """Traceback of the last one that raised."""

    def watch(self, scores: Sequence[Score]) -> None:
        """Raise :class:`~trinity_core.errors.RunError` for a reward that has never scored anything."""
        faults = [score for score in scores if isinstance(score, Fault)]
        if self.only_faults < 0 or len(faults) < len(scores):
            self.only_faults = -1
            return
        self.only_faults += len(faults)
        if self.only_faults >= BROKEN:
            raise RunError(
                f"rewards.{self.slot}: none of the first {self.only_faults} attempts could be scored; the last: "
                f"{faults[-1].reason}. Mend the reward, or drop it: ~rewards.{self.slot}"
            ) from (InWorker(self.trace) if self.trace else None)

    @classmethod
    def of(cls, slot: str, part: Part, open_live: Callable[[str, Any], Any]) -> Judge:
        """``open_live(path, component)`` opens a reward that waits; whoever gave it closes it."""
        component, where = part.component, f"rewards.{slot}"
        one, whole = overrides(component, Reward, "__call__"), overrides(component, Reward, "group")
        if one == whole:
            raise ConfigError(
                f"{where}: {type(component).__name__} must define __call__(attempt) or group(attempts): "
                f"{'both are there' if one else 'neither is there'}"
            )
        function = getattr(type(component), "__call__" if one else "group")
        keys = part.slot if isinstance(part.slot, RewardSlot) else RewardSlot()
        method: Method = "attempt" if one else "group"
        if inspect.iscoroutinefunction(function):
            return cls(slot, keys, method, None, open_live(where, component), float(component.timeout_s))
        return cls(slot, keys, method, Spec.of(component, where), None, float(component.timeout_s))


class Scorer:
    """Scores groups: every reward on every attempt, then the total.

    Total: ``Σ weight · clip(value)`` over the rewards whose gate is positive; without configured rewards it is the
    workflow's own. A part without a score (*invalid*, *fault*) leaves the attempt without one: never 0. All parts are
    kept by name in ``Ok.parts``, before weight and clip.
    """

    def __init__(
        self,
        slots: Mapping[str, Part],
        run: RunContext,
        workers: int = 1,
        *,
        pool: Pool | None = None,
        retries: int = 1,
        open_live: Callable[[str, Any], Any] | None = None,
    ) -> None:
        """``open_live(path, component)`` opens rewards that wait, and then keeps and closes them (a run does); default:
        the scorer opens and closes them itself."""
        self.pool = pool or Pool(workers)
        self._owns_live = open_live is None
        opening = open_live or (lambda _, component: component.open(run))
        self.judges = [Judge.of(slot, part, opening) for slot, part in slots.items()]
        self.retries = retries
        """Times a retryable fault is scored again."""
        known = {WORKFLOW, *slots}
        if WORKFLOW in slots:
            raise ConfigError(f"rewards.{WORKFLOW}: this name is the workflow's own reward. Choose another slot")
        for judge in self.judges:
            if judge.keys.gate is not None and judge.keys.gate not in known - {judge.slot}:
                others = ", ".join(sorted(known - {judge.slot}))
                raise ConfigError(
                    f"rewards.{judge.slot}.gate: {judge.keys.gate!r} is no other reward. Rewards: {others}"
                )

    async def score(self, group: Group) -> None:
        """Set the score of every attempt. One that has no score already because playing broke keeps its fault."""
        open_ = [attempt for attempt in group.attempts if not isinstance(attempt.score, Fault | Invalid)]
        if not open_:
            return
        asked = replace(group, attempts=open_, pairs=[])
        columns = await asyncio.gather(*(self._ask(judge, asked) for judge in self.judges))
        for i, attempt in enumerate(open_):
            own = cast("Ok | None", attempt.score)
            scores = {judge.slot: column[i] for judge, column in zip(self.judges, columns)}
            attempt.score = total(own, scores, {judge.slot: judge.keys for judge in self.judges})

    def close(self) -> None:
        """Kill the processes, close what waits. Twice is fine."""
        self.pool.close()
        for judge in self.judges:
            if self._owns_live and judge.live is not None and hasattr(judge.live, "close"):
                judge.live.close()

    async def _ask(self, judge: Judge, group: Group) -> list[Score]:
        scores = await self._once(judge, group)
        for _ in range(self.retries):
            again = [i for i, score in enumerate(scores) if isinstance(score, Fault) and score.retryable]
            if not again:
                break
            if judge.method == "group":
                scores = await self._once(judge, group)
            else:
                fresh = await self._once(judge, replace(group, attempts=[group.attempts[i] for i in again]))
                for i, score in zip(again, fresh):
                    scores[i] = score
        judge.watch(scores)
        return scores

    async def _once(self, judge: Judge, group: Group) -> list[Score]:
        attempts, where = group.attempts, f"rewards.{judge.slot}"
        if judge.spec is None:
            return await _on_the_loop(judge, attempts, where)
        items = range(len(attempts)) if judge.method == "attempt" else [0]
        answers = await self.pool.run(judge.spec, judge.method, pack(group), items)
        judge.trace = next((one["traceback"] for one in answers.values() if one.get("traceback")), judge.trace)
        if judge.method == "attempt":
            return [_score_of(answers[i]) for i in items]
        answer = answers[0]
        if "scores" in answer:
            return as_scores([from_wire(one) for one in answer["scores"]], len(attempts), where)
        return [_score_of(answer)] * len(attempts)


def _score_of(answer: Mapping[str, Any]) -> Score:
    if "late" in answer:
        return Fault(answer["late"], retryable=False)  # it would hang again
    if "lost" in answer:
        return Fault(answer["lost"], retryable=True)
    return from_wire(answer["score"])


async def _on_the_loop(judge: Judge, attempts: Sequence[Attempt], where: str) -> list[Score]:
    async def limited(call: Any) -> Any:
        try:
            async with asyncio.timeout(judge.timeout_s) as timer:
                return await call
        except TimeoutError as error:
            if timer.expired():
                return Fault(f"{where} took longer than {judge.timeout_s:g} s", retryable=True)
            return broke(error, where, retryable=True)
        except Exception as error:  # noqa: BLE001 - a broken scorer is a fault of the attempt's score
            judge.trace = traceback_of(error)
            return broke(error, where, retryable=True)

    if judge.method == "attempt":
        return [as_score(value, where) for value in await asyncio.gather(*(limited(judge.live(a)) for a in attempts))]
    value = await limited(judge.live.group(attempts))
    if isinstance(value, Fault):
        return [value] * len(attempts)
    return as_scores(value, len(attempts), where)


def total(own: Ok | None, scores: Mapping[str, Score], slots: Mapping[str, RewardSlot]) -> Score:
    """One score of several. ``own`` is the workflow's. The first part without a score decides, faults first."""
    if not scores and own is not None:
        return Ok(own.value, {WORKFLOW: float(own.value), **own.parts})
    if not scores:
        return Invalid("nothing scored it: the workflow returned no reward and none is configured (reward=[…])")
    for kind in (Fault, Invalid):
        for slot, score in scores.items():
            if isinstance(score, kind):
                # a reward's message names its slot where the kernel wrote it
                return (
                    score
                    if score.reason.startswith(("rewards.", "the process of"))
                    else replace(score, reason=f"rewards.{slot}: {score.reason}")
                )
    values = {slot: score.value for slot, score in scores.items() if isinstance(score, Ok)}
    gates = values if own is None else {**values, WORKFLOW: own.value}
    value, parts = 0.0, {}
    for slot, raw in values.items():
        keys = slots[slot]
        parts[slot] = float(raw)
        score = scores[slot]
        assert isinstance(score, Ok)
        parts.update({f"{slot}.{name}": float(part) for name, part in score.parts.items()})
        if keys.gate is not None and not gates.get(keys.gate, 0.0) > 0:
            continue
        low, high = keys.clip or (-float("inf"), float("inf"))
        value += keys.weight * min(max(raw, low), high)
    if own is not None:
        parts[WORKFLOW] = float(own.value)
    return as_score(Ok(value, parts) if abs(value) < float("inf") else value, "rewards")
