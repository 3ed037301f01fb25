"""What every reward keeps to: a score or a reason, the same every time, whatever text it is given.

A reward that reads ``task.data`` names attempts it can score: ``@classmethod example_attempts(cls) -> list[Attempt]``.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from trinity_core.protocols import Reward
from trinity_core.testing.fakes import FakeAttempt
from trinity_core.testing.rules import NotApplicable, require
from trinity_core.types import Attempt, Fault, Invalid, Ok, Score

HOSTILE = (
    "",
    " \n\t",
    "12",
    "The answer is 12.",
    r"\boxed{12}",
    r"\boxed{" * 200,
    "\u0000\u202e\ud83d",
    "٣٤ 一二 ½ 1e999 -0 nan inf",
    "1" * 20_000,
    "(" * 5_000 + "a" * 5_000,
    "<answer>12</answer>" * 500,
    "**********^^^^9**9**9**9**9",
)
"""Texts a policy might write while it learns: empty, huge, unbalanced, odd characters, numbers that are none."""


def examples(component: Any) -> list[Attempt]:
    """Attempts this reward can score."""
    if hasattr(component, "example_attempts"):
        return list(component.example_attempts())
    return [FakeAttempt(text, answer="12", index=n) for n, text in enumerate(("12", "so it is 12", r"\boxed{12}", "7"))]


def hostile(component: Any) -> list[Attempt]:
    """The same task, answered with every hostile text."""
    task = examples(component)[0].task
    attempts = [FakeAttempt("x", task=task, index=n) for n in range(len(HOSTILE))]
    for attempt, text in zip(attempts, HOSTILE):
        attempt.text = text
        attempt.messages[-1]["content"] = text
    return attempts


def _asks(component: Any) -> str:
    """``group`` or ``__call__``: what this reward defines."""
    return "group" if type(component).group is not Reward.group else "__call__"


def _computes(component: Any) -> None:
    if inspect.iscoroutinefunction(getattr(type(component), _asks(component))):
        raise NotApplicable("it waits for others (async def): the kit has no model or service to wait for")


def _score(component: Any, attempts: list[Attempt]) -> list[Any]:
    return list(component.group(attempts)) if _asks(component) == "group" else [component(one) for one in attempts]


def scores_one_or_all(component: Any) -> None:
    """It defines ``__call__`` for one attempt or ``group`` for all, not both and not neither."""
    one = type(component).__call__ is not Reward.__call__
    both = type(component).group is not Reward.group
    require(
        one != both, f"define __call__(attempt) or group(attempts): exactly one. It has {'both' if one else 'neither'}"
    )


def answers_with_a_score(component: Any) -> None:
    """A finite number, ``Ok``, ``Invalid`` or ``Fault``; anything else has no meaning."""
    _computes(component)
    for attempt, score in zip(examples(component), _score(component, examples(component)), strict=True):
        fits = isinstance(score, (Ok, Invalid, Fault)) or (
            isinstance(score, (int, float)) and not isinstance(score, bool) and math.isfinite(score)
        )
        require(
            fits, f"{attempt.text!r} was scored {score!r}: return a finite float, Ok, Invalid(reason) or Fault(reason)"
        )


def scores_something(component: Any) -> None:
    """At least one of its examples has a number: a reward that never scores was not checked."""
    _computes(component)
    scores = _score(component, examples(component))
    require(
        any(isinstance(score, (Ok, int, float)) for score in scores),
        f"no example was scored ({scores}). Give attempts it can score: @classmethod example_attempts(cls) -> list[Attempt]",
    )


def is_deterministic(component: Any) -> None:
    """The same attempt has the same score, in a fresh copy too."""
    _computes(component)
    fresh = pickle.loads(pickle.dumps(component))
    first, again = _score(component, examples(component)), _score(fresh, examples(component))
    require(first == again, f"scored {first}, then {again}")


def order_is_kept(component: Any) -> None:
    """Scores belong to their attempts: turning the order round turns the scores round."""
    _computes(component)
    attempts = examples(component)
    forward = _score(component, attempts)
    backward = _score(component, attempts[::-1])
    require(forward == backward[::-1], f"scores {forward} of a list became {backward} for the same list turned round")


def attempt_is_not_changed(component: Any) -> None:
    """Scoring looks; it does not touch."""
    _computes(component)
    attempts = examples(component)
    before = copy.deepcopy([_seen(attempt) for attempt in attempts])
    _score(component, attempts)
    require([_seen(attempt) for attempt in attempts] == before, "the attempt changed while it was scored")


def _seen(attempt: Attempt) -> list[Any]:
    return [attempt.text, attempt.messages, attempt.info, dataclasses.asdict(attempt.task) if attempt.task else None]


def survives_hostile_text(component: Any, tmp: Path) -> None:
    """Every hostile text is answered, without an exception and within ``timeout_s``, in a process of its own."""
    _computes(component)
    attempts, together = hostile(component), _asks(component) == "group"
    batches = [[attempt, *examples(component)] if together else [attempt] for attempt in attempts]
    work, answer = tmp / "work.pickle", tmp / "scores.pickle"
    work.write_bytes(pickle.dumps(sys.path) + pickle.dumps((component, together, component.timeout_s, batches)))
    command = [sys.executable, "-c", _WORKER, str(work), str(answer)]
    done = subprocess.run(command, capture_output=True, text=True)
    begun = [line for line in done.stderr.splitlines() if line.startswith(_BEGUN)]
    shown = repr(attempts[len(begun) - 1].text[:40]) if begun else "its first text"
    require(done.returncode != -signal.SIGALRM, f"{shown} takes longer than timeout_s = {component.timeout_s} s")
    require(done.returncode == 0, f"{shown} ends in {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    for attempt, scores in zip(attempts, pickle.loads(answer.read_bytes()), strict=True):
        for score in scores:
            _finite(score, repr(attempt.text[:40]))


_BEGUN = "trinity-kit-text"
_WORKER = f"""
import pickle, signal, sys
work = open(sys.argv[1], "rb")
sys.path[:] = pickle.load(work)  # where the component's module is found
component, together, limit_s, batches = pickle.load(work)
scores = []
for attempts in batches:
    print("{_BEGUN}", file=sys.stderr, flush=True)
    signal.setitimer(signal.ITIMER_REAL, limit_s)  # unhandled, the signal ends the process even inside a regex
    scores.append(list(component.group(attempts)) if together else [component(one) for one in attempts])
    signal.setitimer(signal.ITIMER_REAL, 0)
open(sys.argv[2], "wb").write(pickle.dumps(scores))
"""


def _finite(score: Score | float, shown: str) -> None:
    value = score.value if isinstance(score, Ok) else score if isinstance(score, (int, float)) else 0.0
    require(math.isfinite(value), f"{shown} was scored {value}")


def a_missing_gold_answer_is_not_a_zero(component: Any) -> None:
    """Where the score depends on the gold answer, a task without one is ``Invalid``, never a number."""
    _computes(component)
    attempts = examples(component)

    def with_gold(gold: str | None) -> list[Any]:
        changed = [
            dataclasses.replace(one, task=dataclasses.replace(one.task, answer=gold)) for one in attempts if one.task
        ]
        return _score(component, changed)

    golds = [attempt.task.answer for attempt in attempts if attempt.task]
    if all(gold is None for gold in golds) or with_gold("12") == with_gold("-987654"):
        raise NotApplicable("its score does not depend on the gold answer")
    for score in with_gold(None):
        require(
            isinstance(score, (Invalid, Fault)),
            f"a task without a gold answer was scored {score!r}: return Invalid(reason)",
        )


RULES = {
    "defines __call__ or group": scores_one_or_all,
    "answers with a score": answers_with_a_score,
    "scores at least one example": scores_something,
    "is deterministic": is_deterministic,
    "order is kept": order_is_kept,
    "does not change the attempt": attempt_is_not_changed,
    "survives hostile text within its time limit": survives_hostile_text,
    "a missing gold answer is not a zero": a_missing_gold_answer_is_not_a_zero,
}
