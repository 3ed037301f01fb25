"""What an algorithm's parts need is there when they run: values, greedy baselines, schedules."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from trinity_core.algo import AdvantageBatch, Credit
from trinity_core.config.schema import Schedule
from trinity_core.errors import ConfigError
from trinity_core.protocols import Advantage, Reward
from trinity_core.run import start
from trinity_core.testing.fakes import config_for
from trinity_core.types import Attempt

HERE = "tests.run.test_parts_of_algorithms"
WORDS = (
    "tracker=[jsonl]",
    "taskset=[]",
    "+taskset@tasksets.digits=trinity_core.testing.fakes:Digits",
    "sampling.max_response=2",
    "optim.lr=0.3",
    "groups_per_step=4",
    "algorithm.group_size=4",
)


@dataclass(frozen=True)
class Values(Advantage):
    """Return minus value: a critic's advantage."""

    def needs(self) -> frozenset[str]:
        return frozenset({"value"})

    def __call__(self, batch: AdvantageBatch) -> Credit:
        return_N = batch.reward_A[batch.attempt_N]
        return Credit(return_N - batch.tokens["value"], per="token", returns_N=return_N)


@dataclass(frozen=True)
class Greedy(Advantage):
    """Reward minus the greedy attempt's."""

    def needs(self) -> frozenset[str]:
        return frozenset({"greedy"})

    def __call__(self, batch: AdvantageBatch) -> Credit:
        greedy = {int(g): r for g, r, role in zip(batch.group_A, batch.reward_A, batch.role_A) if role == "greedy"}
        assert len(greedy) == len(set(batch.group_A.tolist()))
        return Credit(np.array([r - greedy[int(g)] for g, r in zip(batch.group_A, batch.reward_A)]))


@dataclass(frozen=True)
class One(Reward):
    """Everybody wins."""

    def __call__(self, attempt: Attempt) -> float:
        return 1.0


@dataclass(frozen=True)
class Scheduled(Advantage):
    """A reward times a factor that changes with the step; the factor is logged."""

    factor: float | Schedule = 1.0
    """The factor."""

    def __call__(self, batch: AdvantageBatch) -> Credit:
        return Credit(batch.reward_A * self.factor, metrics={"factor": self.factor})


def steps(tmp_path, *words: str) -> list[dict]:
    words = (*WORDS, *words)
    start(config_for(*words), list(words), out=tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "step"]


def test_a_critic_learns_from_returns_in_every_step(tmp_path):
    one = ("reward=[]", f"+reward@rewards.one={HERE}:One")
    logged = steps(tmp_path, f"advantage={HERE}:Values", "critic=value_head", "critic.lr=0.1", "steps=20", *one)
    # every return is 1 and values start at 0: the first loss is coef · ½ · 1² = .25
    assert logged[0]["critic/loss"] == pytest.approx(0.25)
    assert logged[-1]["critic/loss"] < 0.05


def test_the_first_steps_may_train_the_critic_alone(tmp_path):
    logged = steps(tmp_path, f"advantage={HERE}:Values", "critic=value_head", "critic.warmup_steps=2", "steps=3")
    assert [line["weights/moved"] > 0 for line in logged] == [False, False, True]


def test_a_critic_that_nothing_needs_is_refused():
    with pytest.raises(ConfigError, match="neither advantage nor loss needs a value"):
        config_for("critic=value_head")


def test_a_greedy_attempt_is_played_and_never_trained(tmp_path):
    logged = steps(tmp_path, f"advantage={HERE}:Greedy", "steps=2")
    assert [line["attempts/count"] for line in logged] == [16, 16]


def test_a_schedule_starts_at_its_start(tmp_path):
    words = ("advantage.factor={start: 1.0, end: 0.0, steps: 2}", "steps=3")
    logged = steps(tmp_path, f"advantage={HERE}:Scheduled", *words)
    assert [line["advantage/factor"] for line in logged] == [1.0, 0.5, 0.0]
