"""One small component of each kind that the tests of composing and checking need, independent of the built-ins."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from trinity_core import protocols
from trinity_core.config.schema import Schedule


@dataclass(frozen=True)
class Inner:
    depth: int = 1


@dataclass(frozen=True)
class Tasks(protocols.Taskset):
    path: str
    split: Literal["train", "test"] = "train"
    kinds: tuple[str, ...] = ("a", "b")
    inner: Inner = field(default_factory=Inner)


@dataclass(frozen=True)
class Regex(protocols.Reward):
    pattern: str = ".*"
    value: float = 1.0


@dataclass(frozen=True)
class Selector(protocols.Selector):
    pass


@dataclass(frozen=True)
class Workflow(protocols.Workflow):
    needs_reward: ClassVar[bool] = True


@dataclass(frozen=True)
class Keep(protocols.Operator):
    share: float = 0.5


@dataclass(frozen=True)
class Memory(protocols.Buffer):
    pass


@dataclass(frozen=True)
class Shared(protocols.Buffer):
    shared: ClassVar[bool] = True
    url: str = "sqlite:///buffer.db"


@dataclass(frozen=True)
class Fifo(protocols.SampleStrategy):
    pass


@dataclass(frozen=True)
class Baseline(protocols.Advantage):
    claims: ClassVar[frozenset[str]] = frozenset({"needs_group"})
    normalize: bool = True


@dataclass(frozen=True)
class Clip(protocols.Loss):
    clip_low: float = 0.2
    clip_high: float | Schedule = 0.2


@dataclass(frozen=True)
class Plain(protocols.Loss):
    beta: float = 0.1


@dataclass(frozen=True)
class Pairs(protocols.Loss):
    unit: ClassVar[Literal["token", "sequence", "pair"]] = "pair"

    def needs(self) -> frozenset[str]:
        return frozenset({"ref_logp", "pairs"})


@dataclass(frozen=True)
class Judge(protocols.Operator):
    makes_pairs = True


@dataclass(frozen=True)
class Valued(protocols.Advantage):
    def needs(self) -> frozenset[str]:
        return frozenset({"value"})


@dataclass(frozen=True)
class Truncate(protocols.Correction):
    cap: float = 2.0


@dataclass(frozen=True)
class Poor(protocols.Backend):
    """Gives nothing."""


@dataclass(frozen=True)
class Rich(protocols.Backend):
    provides: ClassVar[frozenset[str]] = frozenset({"old_logp", "ref_logp", "entropy_grad", "value"})
    publishes: ClassVar[frozenset[str]] = frozenset({"tensors"})


@dataclass(frozen=True)
class Engine(protocols.Engine):
    args: dict[str, object] = field(default_factory=dict)
    tensor_parallel: int = 1


@dataclass(frozen=True)
class Picky(protocols.Engine):
    accepts: ClassVar[frozenset[str]] = frozenset({"adapter"})

    def refuse(self, config: object) -> str | None:
        return "sampling.top_k is not known here. Write sampling.top_k=0" if config.sampling.top_k else None  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Watch(protocols.Tracker):
    project: str = "mine"


@dataclass(frozen=True)
class Checked(protocols.Loss):
    low: float = 0.0

    def __post_init__(self) -> None:
        if self.low < 0:
            raise ValueError("low must not be negative")


@dataclass
class Thawed(protocols.Loss):
    """Not frozen."""


class NoDataclass(protocols.Loss):
    """No dataclass."""


HERE = __name__
WORDS = [
    "model=fake",
    f"engine={HERE}:Engine",
    f"backend={HERE}:Rich",
    f"buffer={HERE}:Shared",
    f"selector={HERE}:Selector",
    f"workflow={HERE}:Workflow",
    f"taskset=[{HERE}:Tasks]",
    "tasksets.tasks.path=here",
    f"reward=[{HERE}:Regex]",
    f"tracker=[{HERE}:Watch]",
    f"advantage={HERE}:Baseline",
    f"loss={HERE}:Clip",
    f"sample_strategy={HERE}:Fifo",
]
"""A run of stand-ins only."""
