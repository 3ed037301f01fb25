"""What a step's seconds and bytes depend on, counted: tokens of an update and of its micro-batches, tokens a wave holds."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo.assemble import assemble
from trinity_core.algo.cut import packed_tokens, plan
from trinity_core.types import Attempt, Experience, Group, Ok, Origin

if TYPE_CHECKING:
    from trinity_core.algo.batch import TrainBatch
    from trinity_core.config.schema import RunConfig
    from trinity_core.run.context import Run
    from trinity_core.run.estimate_memory import Done

ROWS = 256
"""Tasks whose prompts are rendered for their lengths."""


@dataclasses.dataclass(frozen=True)
class Line:
    """``start + slope × size``, neither below 0."""

    start: float
    slope: float

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Line:
        """Least squares over ``(size, value)``; of one size alone: proportional to it."""
        if not points:
            return cls(0.0, 0.0)
        sizes, values = np.array(points, dtype=np.float64).T
        if np.ptp(sizes) == 0:
            return cls(0.0, float(np.median(values) / sizes[0])) if sizes[0] else cls(float(np.median(values)), 0.0)
        slope, start = np.polyfit(sizes, values, 1)
        if slope < 0:
            return cls(float(values.mean()), 0.0)
        if start < 0:
            return cls(0.0, float((sizes @ values) / (sizes @ sizes)))
        return cls(float(start), float(slope))

    def __call__(self, size: float) -> float:
        return self.start + self.slope * size


def seconds_by(done: Sequence[Done], phase: str, size: str) -> Line:
    """Seconds of what was done in ``phase``, by its ``size``."""
    return Line.through([(one.size[size], one.seconds) for one in done if one.phase == phase and size in one.size])


def bytes_by(done: Sequence[Done], phase: str, size: str, where: str) -> Line:
    """Peak bytes (``where``: *host* or *gpu*) of what was done in ``phase``, by its ``size``; of one size alone: the same for all.

    The first is left out: what stays allocated from then on (an optimizer's state) was not there yet.
    """
    points = [(one.size[size], getattr(one.peak, where)) for one in done if one.phase == phase and size in one.size][1:]
    if len({at for at, _ in points}) < 2:
        return Line(float(max((value for _, value in points), default=0)), 0.0)
    return Line.through(points)


def live_share(updates: Sequence[Done]) -> float:
    """Tokens that updates computed, as a share of all: less where groups that teach nothing are skipped."""
    total = sum(one.size["all"] for one in updates)
    return sum(one.size["tokens"] for one in updates) / total if total else 1.0


def batch_size(
    component: Any, batch: TrainBatch, scope: str, *, shares: bool = True, rows: NDArray[np.int64] | None = None
) -> dict[str, float]:
    """Of one update by backend ``component``: its tokens, how many micro-batches it is cut into, the tokens of the largest, and
    whether it takes two passes. ``shares``: shared prefixes are computed once. ``rows``: the sequences that are computed, where
    some are skipped; ``all`` is what the tokens would be without."""
    every = np.arange(len(batch))
    rows = every if rows is None else rows
    tokens, limit = packed_tokens(batch, rows, share=shares), getattr(component, "micro_tokens", None)
    found: dict[str, float] = {
        "tokens": tokens,
        "all": tokens if len(rows) == len(every) else packed_tokens(batch, every, share=shares),
        "sequences": len(batch),
        "largest": tokens,
        "micro_batches": 1,
        "two_pass": False,
    }
    if limit and len(rows):
        direct = type(component).direct
        cuts, two_pass = plan(batch, scope=scope, max_tokens=limit, direct=direct, rows=rows, share=shares)
        sizes = [packed_tokens(batch, cut, share=shares) for cut in cuts]
        found |= {"largest": max(sizes), "micro_batches": len(sizes), "two_pass": two_pass}
    return found


def computed(batch: TrainBatch, *, shares: bool) -> int:
    """Tokens of a batch that a forward computes; ``shares``: those that several sequences begin with once."""
    return packed_tokens(batch, np.arange(len(batch)), share=shares)


def wave_size(requests: Sequence[Any], answers: Sequence[Any]) -> dict[str, float]:
    """Of one wave: requests, tokens of the longest reply, all that were sampled, and what is held at its end, padded to the
    longest."""
    prompt = max((len(request.tokens_T) for request in requests), default=0)
    replies = [len(answer.tokens_N) for answer in answers]
    reply = max(replies, default=0)
    return {
        "requests": len(requests),
        "reply": reply,
        "sampled": sum(replies),
        "held": len(requests) * (prompt + reply),
    }


def prompts_of(run: Run) -> list[list[int]]:
    """The prompts of up to ``ROWS`` tasks, evenly over every taskset, as the template renders their messages."""
    found = []
    for taskset in (run.tasksets or run.eval_tasksets).values():
        size = len(taskset)
        for place in range(min(size, ROWS)):
            task = taskset[place * size // min(size, ROWS)]
            if task.messages:
                found.append(run.renderer.render(task.messages))
    return found


def common(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that the prompts of different tasks begin with alike: a template, a system prompt. The median over neighbours."""
    lengths = [
        next((n for n, (left, right) in enumerate(zip(one, other)) if left != right), min(len(one), len(other)))
        for one, other in itertools.pairwise(prompts)
        if list(one) != list(other)
    ]
    return int(statistics.median(lengths)) if lengths else 0


def update_groups(config: RunConfig, played: Sequence[Group], *, shares: bool) -> int:
    """Groups of the largest update that is worth measuring: the run's own, or what fills two micro-batches."""
    groups = -(-config.groups_per_step // max(1, config.optim.mini_batches))
    limit = getattr(config.part("backend"), "micro_tokens", None)
    if not limit or not played:
        return groups
    each = computed(assemble(played, seed=0, step=1), shares=shares) / len(played)
    return max(1, min(groups, int(2 * limit / max(1.0, each)) + 1))


def replicated(groups: Sequence[Group], count: int, alike: int = 0) -> list[Group]:
    """``count`` groups: these, as often as it takes. A copy has an id of its own and another token at place ``alike``: it shares
    with others what different tasks share, and no more."""
    if not groups:
        return []
    words = _words(groups)
    return [
        _copy(groups[n % len(groups)], n // len(groups), n, words, alike) if n >= len(groups) else groups[n]
        for n in range(count)
    ]


def _copy(group: Group, round_: int, number: int, words: NDArray[Any], alike: int) -> Group:
    def other(experience: Experience) -> Experience:
        tokens_T = experience.tokens_T.copy()
        # the two places make a number in words: no two copies have the same
        for place, word in ((alike, number), (alike + 1, number // len(words))):
            if place < len(tokens_T):
                tokens_T[place] = words[(np.searchsorted(words, tokens_T[place]) + word) % len(words)]
        return dataclasses.replace(experience, tokens_T=tokens_T)

    attempts = [
        dataclasses.replace(attempt, experiences=[other(experience) for experience in attempt.experiences])
        for attempt in group.attempts
    ]
    return dataclasses.replace(group, id=f"{group.id}-{round_}", attempts=attempts)


def spread(groups: Sequence[Group]) -> list[Group]:
    """The groups with scores that differ within each: none of them is skipped because it teaches nothing."""
    return [
        dataclasses.replace(
            group,
            attempts=[
                dataclasses.replace(attempt, score=Ok(float(index % 2))) if isinstance(attempt.score, Ok) else attempt
                for index, attempt in enumerate(group.attempts)
            ],
        )
        for group in groups
    ]


def lengthened(groups: Sequence[Group], tokens: int) -> list[Group]:
    """The groups with every sampled attempt as long as it may be: ``tokens`` action tokens, any that were seen."""
    words, rng = _words(groups), np.random.default_rng(0)
    return [
        dataclasses.replace(group, attempts=[_longer(attempt, tokens, words, rng) for attempt in group.attempts])
        for group in groups
    ]


def _words(groups: Sequence[Group]) -> NDArray[np.int32]:
    """The tokens that occur."""
    found = [e.tokens_T for group in groups for attempt in group.attempts for e in attempt.experiences]
    return np.unique(np.concatenate([*found, np.zeros(0, np.int32)]))


def _longer(attempt: Attempt, tokens: int, words: NDArray[np.int32], rng: np.random.Generator) -> Attempt:
    more = tokens - attempt.num_actions
    # what was sampled has calls, whatever an operator has made of the attempt; what was given has none
    if more <= 0 or not attempt.experiences or not attempt.experiences[-1].calls:
        return attempt
    last = attempt.experiences[-1]
    call = dataclasses.replace(last.calls[-1], stop=len(last.tokens_T) + more)
    longer = Experience(
        np.concatenate([last.tokens_T, rng.choice(words, more)]).astype(np.int32),
        np.concatenate([last.origin_T, np.full(more, Origin.SAMPLED, np.uint8)]),
        np.concatenate([last.logp_T, np.full(more, -1.0, np.float32)]),
        [*last.calls[:-1], call],
        index=last.index,
        parent=last.parent,
    )
    return dataclasses.replace(attempt, experiences=[*attempt.experiences[:-1], longer])
