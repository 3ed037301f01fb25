"""Groups that teach nothing are not trained."""

from __future__ import annotations

from dataclasses import dataclass

from trinity_core.errors import ConfigError
from trinity_core.protocols import Operator
from trinity_core.types import Group, Ok


@dataclass(frozen=True)
class DynamicSampling(Operator):
    """Drops a group whose attempts all score the same: a group baseline gives them no credit (arXiv:2503.14476, 3.2).

    Compared are the scores of the sampled attempts, those without a score left out. A dropped group gives its place
    back, so the step is filled up with others.
    """

    key: str = "score"
    """What is compared: ``score``, the attempt's total, or the name of a part of it (a reward's slot)."""
    tolerance: float = 1e-8
    """Largest spread (highest minus lowest) that counts as none."""

    def __post_init__(self) -> None:
        if self.tolerance < 0:
            raise ConfigError(f"operators: dynamic_sampling.tolerance: {self.tolerance} is negative")

    def __call__(self, group: Group) -> list[Group]:
        values = []
        for attempt in group.attempts:
            if attempt.role != "sample" or not isinstance(attempt.score, Ok):
                continue
            if self.key == "score":
                values.append(attempt.score.value)
            elif self.key in attempt.score.parts:
                values.append(attempt.score.parts[self.key])
            else:
                parts = ", ".join(sorted(attempt.score.parts)) or "none"
                raise ConfigError(
                    f"operators: dynamic_sampling.key: {self.key!r} is no part of the score. Parts: {parts}"
                )
        spread = max(values) - min(values) if values else 0.0
        return [group] if spread > self.tolerance else []
