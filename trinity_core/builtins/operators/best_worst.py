"""A group's best and its worst attempt become a pair."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from trinity_core.builtins.operators.dynamic_sampling import scores
from trinity_core.errors import ConfigError
from trinity_core.protocols import Operator
from trinity_core.types import Group


@dataclass(frozen=True)
class BestWorst(Operator):
    """Best and worst of the scored samples become *chosen* and *rejected*: preferences without people (arXiv:2401.10020, 2.3,
    where the reward is the policy's own judgement).

    Of equal scores the first counts. The group's other attempts are removed; a group without any spread is dropped, and gives
    its place back. A group that was given and not sampled stays as it is.
    """

    beside: ClassVar[tuple[str, ...]] = ("algorithm=dpo",)
    makes_pairs: ClassVar[bool] = True

    key: str = "score"
    """What is compared: ``score``, the attempt's total, or the name of a part of it (a reward's slot)."""
    tolerance: float = 1e-8
    """Largest difference of best and worst that counts as none."""

    def __post_init__(self) -> None:
        if self.tolerance < 0:
            raise ConfigError(f"operators: best_worst.tolerance: {self.tolerance} is negative")

    def __call__(self, group: Group) -> list[Group]:
        if not any(attempt.role == "sample" for attempt in group.attempts):
            return [group]
        found = scores(group, self.key, "best_worst")
        if not found:
            return []
        best = max(found, key=lambda one: (one[1], -one[0]))
        worst = min(found, key=lambda one: (one[1], one[0]))
        return [paired(group, best[0], worst[0])] if best[1] - worst[1] > self.tolerance else []


def paired(group: Group, chosen: int, rejected: int) -> Group:
    """``group`` with these two of its attempts alone, as a pair."""
    return replace(
        group,
        attempts=[
            replace(group.attempts[chosen], role="chosen"),
            replace(group.attempts[rejected], role="rejected"),
        ],
        pairs=[(0, 1)],
    )
