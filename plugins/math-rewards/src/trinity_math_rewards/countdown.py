"""The countdown game's reward: an expression that uses each given number once and makes the target."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from trinity_core.protocols import Reward
from trinity_core.types import Attempt, Invalid, Ok, Score, Task
from trinity_math_rewards.answers import TAIL, marked_answer

LONGEST = 200
"""Characters of an expression: also bounds how deep its parentheses go."""
_SIGNS = (
    (r"\times", "*"),
    (r"\cdot", "*"),
    (r"\div", "/"),
    (r"\left", ""),
    (r"\right", ""),
    ("×", "*"),
    ("·", "*"),
    ("÷", "/"),
    ("−", "-"),
    ("$", ""),
    ("[", "("),
    ("]", ")"),
)
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}")
_EXPRESSION = re.compile(r"[\d(][\d\s+\-*/().×÷−·]*[\d)]")


@dataclass(frozen=True)
class CountdownReward(Reward):
    r"""1 if the expression uses each given number exactly once, nothing else, and equals the target; else 0.

    The expression is the last ``\boxed{…}`` or ``<answer>…</answer>``, else the last one in the text; what follows an
    equals sign is dropped. It may hold integers, ``+ - * /``, their LaTeX and Unicode signs, and parentheses. Its syntax
    tree is walked with exact fractions: nothing is ever evaluated as code. Numbers and target come from
    ``task.data["nums"]`` and ``task.data["target"]`` (or the gold answer, where ``data`` has no target). Without them:
    ``Invalid``.

    Part ``legal``: the expression reads and uses the numbers, whatever its value.
    """

    tag: str = "answer"
    """Tag that marks an answer beside the box; empty: boxes only."""

    @classmethod
    def example_attempts(cls) -> list[Attempt]:
        """A right, a wrong and an unreadable answer, for the conformance kit."""
        task = Task("example", (), "20", {"nums": [2, 3, 4], "target": 20})
        texts = ("<answer>(2 + 3) * 4</answer>", "<answer>2 + 3 + 4</answer>", "twenty")
        return [
            Attempt(text=text, task=task, messages=[{"role": "assistant", "content": text}], index=n)
            for n, text in enumerate(texts)
        ]

    def __call__(self, attempt: Attempt) -> Score:
        data = attempt.task.data if attempt.task else {}
        numbers, target = data.get("nums"), data.get("target", attempt.task.answer if attempt.task else None)
        try:
            given = Counter(int(number) for number in numbers or ())
            goal = Fraction(str(target).replace(",", "").strip())
        except (TypeError, ValueError, ZeroDivisionError):
            given, goal = Counter(), Fraction(0)
        if not given:
            task = attempt.task.id if attempt.task else "?"
            return Invalid(
                f"task {task}: no countdown numbers and target in data (nums={numbers!r}, target={target!r})"
            )
        found = expression_of(attempt.text, self.tag)
        value = evaluate(found, given) if found is not None else None
        return Ok(float(value == goal), {"legal": float(value is not None)})


def expression_of(text: str, tag: str = "answer") -> str | None:
    """The expression a text ends in, with plain operators; ``None`` if there is none."""
    found = marked_answer(text, tag)
    if found is None:
        every = [
            match.group()
            for match in _EXPRESSION.finditer(text[-TAIL:])
            if re.search(r"\d\D*[-+*/×÷−·]", match.group())
        ]
        found = every[-1] if every else None
    if found is None:
        return None
    for _ in range(4):  # nested fractions, innermost first
        found = _FRACTION.sub(r"((\1)/(\2))", found)
    for sign, plain in _SIGNS:
        found = found.replace(sign, plain)
    return found.split("=")[0].strip()


def evaluate(expression: str, given: Counter[int]) -> Fraction | None:
    """Exact value of ``expression``, or ``None`` if it is no arithmetic over exactly the numbers of ``given``."""
    if not expression or len(expression) > LONGEST:
        return None
    try:
        tree = ast.parse(expression, mode="eval")
        used: Counter[int] = Counter()
        value = _walk(tree.body, used)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return value if used == given else None


def _walk(node: ast.expr, used: Counter[int]) -> Fraction:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            used[number] += 1
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_walk(inner, used)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_walk(left, used), _walk(right, used))
    raise ValueError(f"{type(node).__name__} is no arithmetic")
