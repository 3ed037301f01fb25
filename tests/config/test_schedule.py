"""Values that change with the step."""

from dataclasses import dataclass, field

import pytest

from trinity_core.config.schedule import at_step, evaluate
from trinity_core.config.schema import Kl, PeakSchedule, Schedule
from trinity_core.errors import ConfigError


@pytest.mark.parametrize(
    ("shape", "step", "value"),
    [
        # from 1 to 0 over 4 steps
        ("linear", 0, 1.0),
        ("linear", 1, 0.75),
        ("linear", 4, 0.0),
        ("linear", 9, 0.0),
        ("cosine", 0, 1.0),
        ("cosine", 1, 0.5 + 0.5 * 0.7071067811865476),  # (1 + cos(pi/4)) / 2
        ("cosine", 2, 0.5),
        ("cosine", 9, 0.0),
    ],
)
def test_a_schedule_goes_from_start_to_end_and_stays(shape, step, value):
    assert evaluate(Schedule(1.0, 0.0, 4, shape), step) == pytest.approx(value, abs=1e-15)


@pytest.mark.parametrize(
    ("warmup", "decay", "values"),
    [
        # peak .9, valley .1; at steps 0, 1, 2, 3, 5, 6, 50
        (0, 0, [0.1] * 7),  # the valley at once
        (2, 0, [0.0, 0.45, 0.1, 0.1, 0.1, 0.1, 0.1]),
        (0, 4, [0.9, 0.5 + 0.4 * 0.7071067811865476, 0.5, 0.5 - 0.4 * 0.7071067811865476, 0.1, 0.1, 0.1]),
        (2, 4, [0.0, 0.45, 0.9, 0.5 + 0.4 * 0.7071067811865476, 0.5 - 0.4 * 0.7071067811865476, 0.1, 0.1]),
    ],
)
def test_a_peak_is_climbed_and_left_for_the_valley(warmup, decay, values):
    schedule = PeakSchedule(0.9, 0.1, warmup, decay)
    assert [evaluate(schedule, step) for step in (0, 1, 2, 3, 5, 6, 50)] == pytest.approx(values, abs=1e-15)


def test_a_peak_takes_no_negative_number_of_steps():
    for steps in ({"warmup": -1}, {"decay": -1}):
        with pytest.raises(ConfigError, match="numbers of steps are 0 or more"):
            PeakSchedule(0.9, 0.1, **steps)


def test_a_number_is_itself_at_every_step():
    assert evaluate(0.3, 7) == 0.3


@dataclass(frozen=True)
class Part:
    mu: float | Schedule | PeakSchedule = 0.5
    kl: Kl = field(default_factory=Kl)


def test_a_component_without_schedules_is_the_same_object():
    part = Part()
    assert at_step(part, 3) is part


def test_schedules_are_replaced_at_every_depth():
    part = Part(Schedule(0.0, 1.0, 10), Kl(coef=Schedule(1.0, 0.0, 2)))
    assert at_step(part, 1) == Part(0.1, Kl(coef=0.5))
    assert at_step(Part(PeakSchedule(0.8, 0.0, warmup=2)), 1) == Part(0.4)
