"""What every sample strategy keeps to: ids of the index, each once, never more than were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trinity_core.testing.rules import require
from trinity_core.testing.subject import opened
from trinity_core.types import Entry

INDEX = [
    Entry(f"run/{n}", draw, version, uses, reward, source, n)
    for n, (draw, version, uses, reward, source) in enumerate(
        [(0, 0, 0, 0.5, "a"), (1, 0, 1, None, "a"), (2, 1, 0, 1.0, "b"), (3, None, 0, 0.0, "b"), (4, 1, 2, 0.25, "a")]
    )
]


def picks_from_the_index(component: Any, tmp: Path) -> None:
    with opened("sample_strategy", component, tmp) as live:
        for n in range(7):
            picked = list(live(INDEX, n))
            require(set(picked) <= {entry.id for entry in INDEX}, f"{picked} are not all in the index")
            require(len(set(picked)) == len(picked), f"{picked} names a group twice")
            require(len(picked) <= n, f"{n} were asked for, {len(picked)} came")


def fills_a_step_when_it_can(component: Any, tmp: Path) -> None:
    """Where enough groups lie ready a step is not kept waiting for ever."""
    with opened("sample_strategy", component, tmp) as live:
        require(len(live(INDEX, 2)) == 2, "2 of 5 were asked for and it waits: the run would never step")


def nothing_of_nothing(component: Any, tmp: Path) -> None:
    with opened("sample_strategy", component, tmp) as live:
        require(list(live([], 3)) == [], "an empty index gave something")


def is_deterministic(component: Any, tmp: Path) -> None:
    with opened("sample_strategy", component, tmp) as first, opened("sample_strategy", component, tmp) as second:
        require(list(first(INDEX, 3)) == list(second(INDEX, 3)), "two runs of one seed pick different groups")


RULES = {
    "picks from the index, each once": picks_from_the_index,
    "fills a step when it can": fills_a_step_when_it_can,
    "nothing comes of an empty index": nothing_of_nothing,
    "same seed, same choice": is_deterministic,
}
