"""Evaluation: pinned to (version, taskset, config), with its own seed streams, never through buffer or selector."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from trinity_core.errors import ConfigError
from trinity_core.run.context import Run
from trinity_core.run.folder import write_json
from trinity_core.types import Group, Ok, Sampling

Z95 = 1.959963984540054
FILE = "evaluations.json"


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927)."""
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n))
    # at the ends the formula is exact; rounding is not
    return (0.0 if successes <= 0 else centre - half), (1.0 if successes >= n else centre + half)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of P(at least one of k attempts is right) from c right of n: ``1 - C(n-c, k) / C(n, k)``
    (arXiv:2107.03374, eq. 1)."""
    if n - c < k:
        return 1.0
    return 1.0 - math.prod((n - c - i) / (n - i) for i in range(k))


def is_right(score: Ok) -> bool:
    """Whether an attempt is right: its first part (the first reward slot) reached 1; without parts, its total did."""
    first = next(iter(score.parts.values()), score.value)
    return first >= 1.0 - 1e-9


def summarize(groups: Sequence[Group]) -> dict[str, Any]:
    """Accuracy with a 95 % interval (over tasks), mean score, pass@k and maj@k where there are several attempts.

    Attempts without a score (faults, invalid golds) are left out and counted, never taken as wrong. Where none has a score there
    is no accuracy: ``None``, as for its interval and the score.
    """
    rights, scores, passed, majority = [], [], [], []
    unscored = 0
    k = max((len(group.attempts) for group in groups), default=0)
    for group in groups:
        ok = [attempt for attempt in group.attempts if isinstance(attempt.score, Ok)]
        unscored += len(group.attempts) - len(ok)
        if not ok:
            continue
        right = [is_right(attempt.score) for attempt in ok if isinstance(attempt.score, Ok)]
        rights.append(sum(right) / len(right))
        scores.append(float(np.mean([attempt.value for attempt in ok])))
        if len(right) == k:  # fewer would be another k
            passed.append(pass_at_k(k, sum(right), k))
        most = Counter(attempt.text.strip() for attempt in ok).most_common(1)[0][0]
        majority.append(float(next(r for attempt, r in zip(ok, right) if attempt.text.strip() == most)))
    n = len(rights)
    if not n:
        return dict.fromkeys(("accuracy", "ci_low", "ci_high")) | {"n": 0, "score": None, "unscored": unscored}
    accuracy = float(np.mean(rights))
    if k <= 1 or len(set(rights)) <= 1:  # no spread between tasks says nothing about its error
        low, high = wilson(sum(rights), n)
    else:  # tasks are the independent units
        half = Z95 * float(np.std(rights, ddof=1)) / math.sqrt(n) if n > 1 else 1.0
        low, high = max(0.0, accuracy - half), min(1.0, accuracy + half)
    result = {
        "accuracy": accuracy,
        "ci_low": low,
        "ci_high": high,
        "n": n,
        "score": float(np.mean(scores)),
        "unscored": unscored,
    }
    if k > 1:
        if passed:
            result[f"pass@{k}"] = float(np.mean(passed))
        result |= {f"maj@{k}": float(np.mean(majority))}
    return result


class Evaluator:
    """Evaluates the version that the engine holds; remembers finished evaluations over a resume."""

    def __init__(self, run: Run) -> None:
        self.run = run
        config = run.config.eval
        self.sampling = Sampling(
            temperature=config.temperature,
            top_p=run.config.sampling.top_p,
            top_k=run.config.sampling.top_k,
            max_tokens=run.config.sampling.max_response,
            stop=run.config.sampling.stop,
        )
        self.done: list[dict[str, Any]] = []
        path = run.dir / FILE
        if path.exists():
            self.done = [entry for entry in json.loads(path.read_text()) if entry["step"] <= run.step]

    def due(self, step: int, *, last: int) -> bool:
        """Whether the end of ``step`` is a moment to evaluate."""
        config = self.run.config.eval
        if not self.run.eval_tasksets:
            return False
        if step == 0:
            return config.before
        return (step == last and config.after) or (config.every > 0 and step % config.every == 0)

    async def evaluate(self, step: int) -> None:
        """Evaluate version ``step`` (which the engine holds) on every eval taskset; finished ones are not repeated."""
        engine = self.run.engine
        assert engine is not None
        if engine.version != step:
            raise ConfigError(f"evaluation of version {step}: the engine holds version {engine.version}")
        for slot, taskset in self.run.eval_tasksets.items():
            settings = self.settings(slot)
            if self.found(step, slot, settings):
                continue
            rows = range(
                len(taskset) if self.run.config.eval.limit is None else min(self.run.config.eval.limit, len(taskset))
            )
            self.run.phase_of_trainer = f"evaluating {slot}"
            played = await self.run.scheduler.play_all(
                [(0, slot, row) for row in rows],
                stream=f"eval:{slot}",
                sampling=self.sampling,
                num_attempts=self.run.config.eval.attempts,
                min_attempts=0,
                tasksets=self.run.eval_tasksets,
            )
            groups = [one.group for one in played]
            result = {"step": step, "taskset": slot, "settings": settings, **summarize(groups)}
            self.done.append(result)
            write_json(self.run.dir / FILE, self.done)
            self.run.tell("evaluated", step, slot, result)
            if not result["n"]:
                self.run.tell("warned", f"evaluation of version {step} on {slot}: {self.why_none(groups)}")
        self.run.phase_of_trainer = ""

    @staticmethod
    def why_none(groups: Sequence[Group]) -> str:
        """What to say of an evaluation in which nothing has a score."""
        attempts = [attempt for group in groups for attempt in group.attempts]
        if not attempts:
            return "no attempt was played, so there is no accuracy"
        told = Counter(getattr(attempt.score, "reason", None) or "no reward gave one" for attempt in attempts)
        most, times = told.most_common(1)[0]
        return f"none of {len(attempts)} attempts has a score, so there is no accuracy. {times} times: {most}"

    def settings(self, slot: str) -> str:
        """Hash of everything that an evaluation's number depends on besides the weights."""
        from trinity_core.config.plain import plain

        parts = self.run.config.parts
        wanted = {
            path: [part.name, plain(part.component)]
            for path, part in parts.items()
            if path == f"eval.tasksets.{slot}"
            or path.startswith("rewards.")
            or path in ("workflow", "environment", "engine")
        }
        text = json.dumps(
            [wanted, repr(self.sampling), repr(self.run.config.eval), self.run.seed, self.run.tokenizer.digest()],
            sort_keys=True,
            default=str,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def found(self, step: int, slot: str, settings: str) -> dict[str, Any] | None:
        for entry in self.done:
            if (entry["step"], entry["taskset"], entry["settings"]) == (step, slot, settings):
                return entry
        return None

    def at(self, step: int) -> dict[str, Any] | None:
        """The first eval taskset's result at ``step``, for the summary."""
        return next((entry for entry in self.done if entry["step"] == step), None)
