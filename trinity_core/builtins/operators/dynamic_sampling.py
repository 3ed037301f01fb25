"""Groups that teach nothing are not trained."""

from __future__ import annotations

from dataclasses import dataclass

from trinity_core.config.schema import RunConfig
from trinity_core.errors import ConfigError
from trinity_core.protocols import Operator
from trinity_core.types import Group, Ok


@dataclass(frozen=True)
class DynamicSampling(Operator):
    """Drops a group whose attempts all score the same: a group baseline gives them no credit (arXiv:2503.14476, 3.2).

    Compared are the scores of the sampled attempts, those without a score left out. A dropped group gives its place
    back, so the step is filled up with others. A group that was given and not sampled stays.
    """

    key: str = "score"
    """What is compared: ``score``, the attempt's total, or the name of a part of it (a reward's slot)."""
    tolerance: float = 1e-8
    """Largest spread (highest minus lowest) that counts as none."""

    def __post_init__(self) -> None:
        if self.tolerance < 0:
            raise ConfigError(f"operators: dynamic_sampling.tolerance: {self.tolerance} is negative")

    def refuse(self, config: RunConfig) -> str | None:
        """One attempt has no spread: every group that is played would be dropped, until the run gives up."""
        given = any(part.component.gives() for part in config.slots("tasksets").values())
        if config.algorithm.group_size > 1 or given or config.mode not in ("both", "explore"):
            return None
        return (
            "algorithm.group_size=1 gives each group one score, so no group can have a spread and every one would be dropped. "
            "Write algorithm.group_size=8, or operator=[]"
        )

    def __call__(self, group: Group) -> list[Group]:
        if not any(attempt.role == "sample" for attempt in group.attempts):
            return [group]
        values = [value for _, value in scores(group, self.key, "dynamic_sampling")]
        spread = max(values) - min(values) if values else 0.0
        return [group] if spread > self.tolerance else []


def scores(group: Group, key: str, who: str) -> list[tuple[int, float]]:
    """(index, score) of each sampled attempt that has one; ``key`` names a part of the score, or ``score`` the whole."""
    found = []
    for index, attempt in enumerate(group.attempts):
        if attempt.role != "sample" or not isinstance(attempt.score, Ok):
            continue
        if key == "score":
            found.append((index, attempt.score.value))
        elif key in attempt.score.parts:
            found.append((index, attempt.score.parts[key]))
        else:
            parts = ", ".join(sorted(attempt.score.parts)) or "none"
            raise ConfigError(f"operators: {who}.key: {key!r} is no part of the score. Parts: {parts}")
    return found
