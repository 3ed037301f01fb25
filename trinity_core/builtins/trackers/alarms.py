"""Alarms: what a run's metrics look like when it goes wrong in a way that others have met."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from trinity_core.errors import ConfigError
from trinity_core.plugins import did_you_mean
from trinity_core.protocols import RunContext, Tracker


@dataclass(frozen=True)
class Rule:
    """When a metric is wrong, and what happens then. A value that is NaN breaks every rule."""

    above: float | None = None
    """The largest value that is fine; null: any."""
    below: float | None = None
    """The smallest value that is fine; null: any."""
    for_steps: int = 1
    """Steps in a row that break the rule before the alarm sounds."""
    action: Literal["warn", "checkpoint", "stop"] = "warn"
    """warn; or also save a checkpoint after the step; or also stop the run after saving it."""

    def __post_init__(self) -> None:
        if self.above is None and self.below is None:
            raise ConfigError("a rule needs above or below: the bound that sounds the alarm")
        if self.for_steps < 1:
            raise ConfigError(f"for_steps: {self.for_steps} must be 1 or more")

    def broken_by(self, value: float) -> str:
        """What is wrong with ``value``, in words; "" if nothing is."""
        if math.isnan(value):
            return "not a number"
        if self.above is not None and value > self.above:
            return f"{value:.3g}, above {self.above:g}"
        if self.below is not None and value < self.below:
            return f"{value:.3g}, below {self.below:g}"
        return ""


RULES: Mapping[str, Rule] = {
    "correction/*/kept": Rule(below=0.5),
    "entropy": Rule(below=0.05, for_steps=3),
    "groups/zero_spread": Rule(above=0.95, for_steps=3),
    "kl/sampler_k3": Rule(above=0.1),
    "response/truncated": Rule(above=0.9, for_steps=3),
}
"""What is watched unless config says otherwise."""

CAUSES: Mapping[str, str] = {
    "correction/*/kept": "most tokens are dropped. Engine and trainer disagree or the data is old; a ratio of whole sequences grows with their length",
    "entropy": "the policy hardly explores any more. Lower optim.lr, or raise algorithm.entropy_coef or algorithm.kl.coef",
    "groups/zero_spread": "nearly all groups have one score for all attempts and teach nothing. The tasks are too hard or too easy, or the reward is constant",
    "kl/sampler_k3": "sampler and trainer diverge. Look at dtype and optim.lr, and at staleness/max where play runs ahead",
    "response/truncated": "nearly all replies are cut off. Raise sampling.max_response, or check the stop token",
}
"""What to look at, by rule."""


@dataclass(frozen=True)
class Alarms(Tracker):
    """Warns, saves or stops when a metric leaves its bounds for some steps in a row.

    A rule stands under the name of a metric, or a pattern of names: ``correction/*/kept``. ``docs/metrics.md`` lists the names. The
    alarm sounds once, and again only after the metric was fine in between. A rule that is null is off:
    ``'trackers.alarms.rules={entropy: null}'``. A rule of yours whose metric never appeared is named at the end of the run.
    """

    rules: Mapping[str, Rule | None] = field(default_factory=lambda: dict(RULES))
    """By metric: above, below, for_steps, action."""

    def open(self, run: RunContext) -> LiveAlarms:
        return LiveAlarms(self, run)


class LiveAlarms(Tracker):
    """The alarms of one run. A resume goes on with the streaks of the step it resumes from."""

    def __init__(self, config: Alarms, run: RunContext) -> None:
        self._run = run
        self._rules = {pattern: rule for pattern, rule in config.rules.items() if rule is not None}
        self._streaks: dict[str, dict[str, int]] = {}
        """By rule and metric: steps in a row that broke the rule."""
        self._appeared: set[str] = set()
        """Rules that some metric was for."""
        self._names: set[str] = set()
        """Metrics of this process."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "streaks": {pattern: dict(streaks) for pattern, streaks in self._streaks.items()},
            "appeared": sorted(self._appeared),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._streaks = {
            pattern: {name: int(count) for name, count in streaks.items()}
            for pattern, streaks in state["streaks"].items()
        }
        self._appeared = set(state["appeared"])

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._names |= metrics.keys()
        for pattern, rule in self._rules.items():
            for name in sorted(name for name in metrics if fnmatchcase(name, pattern)):
                self._appeared.add(pattern)
                self._check(pattern, rule, name, metrics[name])

    def finished(self, summary: Mapping[str, Any]) -> None:
        if not self._names:  # it failed before its first step
            return
        for pattern in sorted(self._rules.keys() - self._appeared - RULES.keys()):
            self._run.alarm(
                "warn",
                f"alarms: no metric was ever called {pattern}.{did_you_mean(pattern, self._names)} docs/metrics.md lists the names",
            )

    def _check(self, pattern: str, rule: Rule, name: str, value: float) -> None:
        streaks = self._streaks.setdefault(pattern, {})
        wrong = rule.broken_by(value)
        streaks[name] = streaks.get(name, 0) + 1 if wrong else 0
        if streaks[name] == rule.for_steps:
            since = f" for {rule.for_steps} steps" if rule.for_steps > 1 else ""
            cause = f": {CAUSES[pattern]}" if pattern in CAUSES else ""
            self._run.alarm(rule.action, f"alarm: {name} is {wrong}{since}{cause}")
