"""Alarms: what sounds, when, how often; and what a run does about it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from trinity_core.builtins.trackers.alarms import CAUSES, RULES, Alarms, Rule
from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.errors import ConfigError, RunError
from trinity_core.run.resume import expand
from trinity_core.run.session import start
from trinity_core.testing.fakes import FakeRun


def sounded(alarms: Alarms, *steps: dict[str, float], finish: bool = False) -> list[tuple[str, str]]:
    """(action, message) of every alarm over these steps' metrics."""
    run = FakeRun()
    live = alarms.open(run)
    for number, metrics in enumerate(steps, 1):
        live.step(number, metrics)
    if finish:
        live.finished({"status": "finished"})
    return run.alarms


def one(name: str, **rule: Any) -> Alarms:
    return Alarms(rules={name: Rule(**rule)})


# --- when ---


def test_a_value_at_its_bound_is_fine():
    assert sounded(one("kl", above=0.5), {"kl": 0.5}) == []
    assert sounded(one("kl", below=0.5), {"kl": 0.5}) == []


def test_the_message_says_value_and_bound():
    assert sounded(one("kl", above=0.5), {"kl": 0.75}) == [("warn", "alarm: kl is 0.75, above 0.5")]
    assert sounded(one("kl", below=0.5, action="stop"), {"kl": 0.25}) == [("stop", "alarm: kl is 0.25, below 0.5")]


def test_both_bounds_hold():
    both = one("x", above=1.0, below=-1.0)
    assert sounded(both, {"x": 0.0}) == []
    assert [message.rpartition(", ")[2] for _, message in sounded(both, {"x": 2.0}, {"x": 0.0}, {"x": -2.0})] == [
        "above 1",
        "below -1",
    ]


def test_nan_breaks_every_rule_and_infinity_the_upper_bound():
    assert sounded(one("kl", below=0.0), {"kl": math.nan}) == [("warn", "alarm: kl is not a number")]
    assert len(sounded(one("kl", above=0.0), {"kl": math.inf})) == 1


def test_an_alarm_waits_for_its_steps_in_a_row_and_sounds_once():
    """Bad, bad, fine, bad, bad, bad, bad: three in a row at the sixth step, and never again while it lasts."""
    rule = one("zero", above=0.9, for_steps=3)
    values = [1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0]
    for count, wanted in ((5, 0), (6, 1), (7, 1)):
        assert len(sounded(rule, *({"zero": value} for value in values[:count]))) == wanted
    assert sounded(rule, *({"zero": value} for value in values))[0][1] == "alarm: zero is 1, above 0.9 for 3 steps"


def test_an_alarm_sounds_again_after_the_metric_was_fine():
    assert len(sounded(one("x", above=0.0), {"x": 1.0}, {"x": 1.0}, {"x": 0.0}, {"x": 1.0})) == 2


def test_a_step_without_the_metric_neither_counts_nor_breaks_the_row():
    assert len(sounded(one("x", above=0.0, for_steps=2), {"x": 1.0}, {"y": 1.0}, {"x": 1.0})) == 1


def test_a_pattern_watches_each_of_its_metrics_by_itself():
    rule = one("correction/*/kept", below=0.5, for_steps=2)
    a, b = "correction/A/kept", "correction/B/kept"
    assert sounded(rule, {a: 0.1, b: 0.9}, {a: 0.9, b: 0.1}) == []
    found = sounded(rule, {a: 0.1, b: 0.1, "correction/A": 0.0}, {a: 0.1, b: 0.1, "correction/A": 0.0})
    assert [message.split()[1] for _, message in found] == [a, b]


def test_a_rule_that_is_null_is_off():
    assert sounded(Alarms(rules={"x": None}), {"x": math.nan}, finish=True) == []


def test_what_others_met_is_watched_and_says_what_to_look_at():
    """One value beyond and one within the bounds of each, as long as it takes."""
    bad = {
        "correction/TruncatedIS/kept": 0.4,
        "entropy": 0.01,
        "groups/zero_spread": 1.0,
        "kl/sampler_k3": 0.2079,
        "response/truncated": 0.95,
    }
    fine = {
        "correction/TruncatedIS/kept": 0.6,
        "entropy": 0.5,
        "groups/zero_spread": 0.5,
        "kl/sampler_k3": 0.0046,
        "response/truncated": 0.5,
    }
    assert set(CAUSES) == set(RULES) and len(bad) == len(RULES)
    assert sounded(Alarms(), *[fine] * 5, finish=True) == []
    found = sounded(Alarms(), *[bad] * 5)
    assert {message.split()[1] for _, message in found} == set(bad) and len(found) == len(bad)
    assert {action for action, _ in found} == {"warn"}
    assert all(message.endswith(tuple(CAUSES.values())) for _, message in found)


# --- what never came ---


def test_a_rule_for_a_metric_that_never_came_is_named_at_the_end():
    rules = {**RULES, "kl/reff": Rule(above=1.0), "loss": Rule(above=1.0)}
    found = sounded(Alarms(rules=rules), {"kl/ref": 0.1, "loss": 0.0, "entropy": 1.0}, finish=True)
    assert [action for action, _ in found] == ["warn"]
    assert "no metric was ever called kl/reff. Did you mean 'kl/ref'?" in found[0][1]


def test_a_run_that_took_no_step_names_none():
    assert sounded(one("nowhere", above=0.0), finish=True) == []


def test_a_resume_goes_on_with_the_row_and_what_was_seen():
    alarms = Alarms(rules={"x": Rule(above=0.0, for_steps=2), "rare": Rule(above=5.0)})
    before, after = FakeRun(), FakeRun()
    first, second = alarms.open(before), alarms.open(after)
    first.step(1, {"x": 1.0, "rare": 1.0})
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.step(2, {"x": 1.0})
    second.finished({"status": "finished"})
    assert before.alarms == [] and [message.split()[1] for _, message in after.alarms] == ["x"]


# --- values that cannot be ---


@pytest.mark.parametrize(
    ("rule", "words"), [({}, "needs above or below"), ({"above": 1.0, "for_steps": 0}, "1 or more")]
)
def test_a_rule_that_can_never_sound_is_refused(rule, words):
    with pytest.raises(ConfigError, match=words):
        Rule(**rule)


# --- whole runs ---

RUN = ["recipe=fake", "groups_per_step=2", "algorithm.group_size=4", "tracker=[jsonl,alarms]", "eval.before=false"]
STEPS = "steps=4"


def run(*words: str) -> dict[str, Any]:
    whole = tuple(expand(words))
    return start(check(compose(whole)), whole)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def rule(action: str, for_steps: int = 2) -> str:
    return f"trackers.alarms.rules={{reward/mean: {{below: 5.0, for_steps: {for_steps}, action: {action}}}}}"


def alarms_of(folder: Path) -> list[tuple[int, str]]:
    said = events(folder, "warned")
    return [(line["step"], line["message"]) for line in said if line["message"].startswith("alarm: reward/mean")]


def test_a_warning_reaches_every_tracker_and_the_run_goes_on(tmp_path, capsys):
    out = tmp_path / "run"
    console = "tracker=[console,jsonl,alarms]"
    summary = run(*RUN, console, STEPS, rule("warn"), "checkpoint.every=0", f"out={out}")
    assert summary["status"] == "finished" and summary["steps"] == 4
    assert [step for step, _ in alarms_of(out)] == [2]
    assert "below 5 for 2 steps" in alarms_of(out)[0][1]
    assert "warning: alarm: reward/mean is" in capsys.readouterr().out
    assert [line["step"] for line in events(out, "checkpointed")] == [4]


def test_an_alarm_saves_the_step_and_the_run_goes_on(tmp_path):
    out = tmp_path / "run"
    summary = run(*RUN, STEPS, rule("checkpoint"), "checkpoint.every=0", f"out={out}")
    assert summary["status"] == "finished" and summary["steps"] == 4
    assert [line["step"] for line in events(out, "checkpointed")] == [2, 4]
    assert [step for step, _ in alarms_of(out)] == [2]


def test_an_alarm_stops_the_run_after_saving_and_a_resume_goes_on(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(RunError, match=r"step 2: alarm: reward/mean .* trinity run resume="):
        run(*RUN, STEPS, rule("stop"), "checkpoint.every=0", f"out={out}")
    assert [line["step"] for line in events(out, "step")] == [1, 2]
    assert [line["step"] for line in events(out, "checkpointed")] == [2]
    assert events(out, "finished")[-1]["status"] == "failed"
    summary = run(f"resume={out}")  # whoever goes on has heard it: the row of steps is still the same one
    assert summary["status"] == "finished" and summary["steps"] == 4
    assert [step for step, _ in alarms_of(out)] == [2]


def test_a_misspelt_metric_is_named_when_the_run_ends(tmp_path):
    out = tmp_path / "run"
    run(*RUN, "steps=1", "trackers.alarms.rules={reward/meen: {above: 1}}", f"out={out}")
    said = [line["message"] for line in events(out, "warned") if "reward/meen" in line["message"]]
    assert len(said) == 1 and "Did you mean 'reward/mean'?" in said[0]


def test_alarms_are_on_unless_trackers_are_chosen():
    assert "alarms" in check(compose(["recipe=fake"])).slots("trackers")
