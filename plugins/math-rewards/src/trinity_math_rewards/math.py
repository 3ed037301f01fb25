r"""Rewards for a right answer: ``math``, ``math_boxed``, ``accuracy``."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from trinity_core.protocols import Reward
from trinity_core.types import Attempt, Invalid, Ok, Score
from trinity_math_rewards.answers import last_expression, marked_answer
from trinity_math_rewards.reading import equal, readable


@dataclass(frozen=True)
class Math(Reward):
    r"""1 if the answer equals the gold answer, else 0; compared as mathematics by math-verify.

    The answer is the last ``\boxed{…}`` or ``<answer>…</answer>`` of the final text, whichever ends last; where nothing is
    marked, the last number or LaTeX expression. ``\frac{1}{2}``, ``0.5``, ``.5`` and ``50\%`` are one answer; so are
    ``1,000`` and ``1000``, ``\{1,2\}`` and ``\{2,1\}``; ``(1,2)`` and ``[1,2]`` are not. Units and currency signs are
    ignored. The order of arguments matters to math-verify and is (gold, prediction).

    Parts: ``strict`` (right and marked) and ``flexible`` (right at all): their difference is how often a right answer lacks
    its box. A gold answer that is missing, unreadable, or unequal to itself gives ``Invalid``, never 0.
    """

    tag: str = "answer"
    """Tag that marks an answer beside the box; empty: boxes only."""
    digits: int = 6
    """Decimal places to which numbers are compared."""

    def __call__(self, attempt: Attempt) -> Score:
        strict, flexible = _judge(attempt, self.tag, self.digits) or (None, None)
        if strict is None or flexible is None:
            return _no_gold(attempt)
        return Ok(flexible, {"strict": strict, "flexible": flexible})


@dataclass(frozen=True)
class MathBoxed(Reward):
    r"""1 if the last ``\boxed{…}`` equals the gold answer, else 0. Nothing but a box counts.

    Parts ``strict`` and ``flexible`` as for ``math``: a policy whose ``flexible`` is far above ``strict`` knows the answers
    and not the format. An unreadable gold answer gives ``Invalid``.
    """

    digits: int = 6
    """Decimal places to which numbers are compared."""

    def __call__(self, attempt: Attempt) -> Score:
        strict, flexible = _judge(attempt, "", self.digits) or (None, None)
        if strict is None or flexible is None:
            return _no_gold(attempt)
        return Ok(strict, {"strict": strict, "flexible": flexible})


@dataclass(frozen=True)
class Accuracy(Reward):
    r"""1 if the answer matches the gold answer as text or as mathematics, else 0: for tasks whose answers mix both.

    Candidates are the marked answer (as for ``math``), else the last line that is not empty. Text matches after Unicode
    NFKC, case folding, dropping ``\text{…}``, markdown emphasis, a leading "answer:" or "the answer is", quotes and
    final punctuation, and joining blanks. Mathematics is tried where the gold answer holds a digit or a LaTeX command:
    letters alone would be read as a product, in which ``seat`` equals ``east``. Where nothing is marked, the last number
    or expression is tried too. An empty gold answer gives ``Invalid``.
    """

    tag: str = "answer"
    """Tag that marks an answer beside the box; empty: boxes only."""
    digits: int = 6
    """Decimal places to which numbers are compared."""

    def __call__(self, attempt: Attempt) -> Score:
        gold = _gold(attempt)
        if not gold:
            return _no_gold(attempt)
        marked = marked_answer(attempt.text, self.tag)
        candidate = marked if marked is not None else _last_line(attempt.text)
        by_text = _plain(candidate) == _plain(gold)
        by_math = False
        if not by_text and re.search(r"\d|\\(?!text\b)[a-zA-Z]+", gold) and readable(gold):
            tried = [candidate] if marked is not None else [candidate, last_expression(attempt.text) or ""]
            by_math = any(equal(gold, said, self.digits) for said in tried)
        return Ok(float(by_text or by_math), {"text": float(by_text), "math": float(by_math)})


def _gold(attempt: Attempt) -> str:
    answer = attempt.task.answer if attempt.task else None
    if not answer:
        return ""
    marked = marked_answer(answer)
    return (answer if marked is None else marked).strip()


def _judge(attempt: Attempt, tag: str, digits: int) -> tuple[float, float] | None:
    """(right and marked, right at all); ``None`` where the gold answer cannot be read."""
    gold = _gold(attempt)
    if not gold or not readable(gold):
        return None
    marked = marked_answer(attempt.text, tag)
    said = marked if marked is not None else last_expression(attempt.text)
    right = float(said is not None and equal(gold, said, digits))
    return (right if marked is not None else 0.0), right


def _no_gold(attempt: Attempt) -> Invalid:
    answer = attempt.task.answer if attempt.task else None
    task = attempt.task.id if attempt.task else "?"
    if not answer or not answer.strip():
        return Invalid(f"task {task} has no gold answer")
    return Invalid(f"task {task}: the gold answer {answer[:80]!r} cannot be read as mathematics")


_EMPHASIS = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}|\*\*|__|`")
_LEAD = re.compile(
    r"^(?:so |thus |therefore |hence )?,?\s*(?:the )?(?:final )?answer(?: is|\s*:)\s*:?\s*", re.IGNORECASE
)


def _last_line(text: str) -> str:
    return next((line for line in reversed(text[-4096:].splitlines()) if line.strip()), "")


def _plain(text: str) -> str:
    text = unicodedata.normalize("NFKC", text[:4096])
    text = _EMPHASIS.sub(lambda match: match[1] or "", text).strip()
    text = _LEAD.sub("", text).strip().strip("\"'“”‘’$ ").rstrip(".!;:, ")
    return " ".join(text.casefold().split())
