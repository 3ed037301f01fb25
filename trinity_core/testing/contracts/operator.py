"""What every operator keeps to: a list of groups, the same every time, tokens untouched."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import numpy as np

from trinity_core.testing.fakes import fake_group
from trinity_core.testing.rules import NotApplicable, require
from trinity_core.testing.subject import opened
from trinity_core.types import Fault, Group, Invalid


def examples(component: Any) -> list[Group]:
    """Groups of every sort that play can end in."""
    if hasattr(component, "example_groups"):
        return list(component.example_groups())
    return [
        fake_group([1.0, 0.0, 0.0, 1.0], draw=0),
        fake_group([1.0, 1.0, 1.0], draw=1),
        fake_group([0.0, 0.0], draw=2),
        fake_group([0.5, Invalid("no gold"), Fault("timeout")], draw=3),
        fake_group([0.25], draw=4),
        fake_group([None, None], draw=5, roles=["chosen", "rejected"], pairs=[(0, 1)]),
        fake_group([None], draw=6, roles=["expert"]),
    ]


def _computes(live: Any) -> None:
    if inspect.iscoroutinefunction(type(live).__call__):
        raise NotApplicable("it waits for others (async def): the kit has no model, service or people to wait for")


def answers_with_groups(component: Any, tmp: Path) -> None:
    with opened("operator", component, tmp) as live:
        _computes(live)
        for group in examples(component):
            answer = live(group)
            require(
                isinstance(answer, list),
                f"it returned {type(answer).__name__}: return a list, empty to filter the group",
            )
            for one in answer:
                require(isinstance(one, Group), f"the list holds a {type(one).__name__}")
            ids = [one.id for one in answer]
            require(len(set(ids)) == len(ids), f"two groups with one id: {ids}. The ledger would keep one of them")


def is_deterministic(component: Any, tmp: Path) -> None:
    with opened("operator", component, tmp) as first, opened("operator", component, tmp) as second:
        _computes(first)
        for group in examples(component):
            a, b = first(copy.deepcopy(group)), second(copy.deepcopy(group))
            shown = [[one.id for one in answer] for answer in (a, b)]
            require(shown[0] == shown[1], f"the same group became {shown[0]}, then {shown[1]}")


def sampled_tokens_are_untouched(component: Any, tmp: Path) -> None:
    """Ids and log-probabilities of what the policy sampled are facts."""
    with opened("operator", component, tmp) as live:
        _computes(live)
        for group in examples(component):
            before = copy.deepcopy(group)
            for one in live(group):
                if one.id != before.id:
                    continue
                for attempt in one.attempts:
                    roles = {attempt.role} | ({"sample"} if attempt.role in ("chosen", "rejected") else set())
                    was = next(
                        (old for old in before.attempts if old.index == attempt.index and old.role in roles), None
                    )
                    for experience, old in zip(attempt.experiences, was.experiences if was else []):
                        same = np.array_equal(experience.tokens_T, old.tokens_T) and np.array_equal(
                            experience.logp_T, old.logp_T, equal_nan=True
                        )
                        require(same, f"attempt {attempt.index} of {one.id}: tokens or log-probabilities changed")


def pairs_are_whole(component: Any, tmp: Path) -> None:
    """A pair is two different attempts of its group, and who makes pairs says so (``makes_pairs``): a loss over pairs is
    refused without one."""
    says, made = type(component).makes_pairs, False
    with opened("operator", component, tmp) as live:
        _computes(live)
        for group in examples(component):
            before = list(group.pairs)
            for one in live(copy.deepcopy(group)):
                for pair in one.pairs:
                    fits = len(set(pair)) == 2 and all(0 <= side < len(one.attempts) for side in pair)
                    require(fits, f"pair {pair} of group {one.id} is not two of its {len(one.attempts)} attempts")
                made = made or (bool(one.pairs) and not before)
    require(made or not says, "makes_pairs is true, and no example became a pair")
    require(says or not made, "it made pairs of a group that had none: say makes_pairs: ClassVar = True")


RULES = {
    "answers with a list of groups": answers_with_groups,
    "is deterministic": is_deterministic,
    "sampled tokens are untouched": sampled_tokens_are_untouched,
    "pairs are whole": pairs_are_whole,
}
