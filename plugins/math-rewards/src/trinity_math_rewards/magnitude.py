"""Answers that nobody should compute: ``9^{9^{9}}`` reads in a millisecond and is compared until the end of time."""

from __future__ import annotations

import math
from typing import Any

import sympy

MOST_DIGITS = 1000.0
"""Decimal digits of the largest number that is still compared."""
MOST_FACTORS = 64
"""Largest power of a symbolic expression that is still expanded."""


def enormous(expression: Any) -> bool:
    """Whether a power, a factorial or a binomial anywhere in it would fill more than :data:`MOST_DIGITS` digits."""
    nodes = [expression] if isinstance(expression, sympy.Basic) else list(expression)
    return any(_enormous_here(node) for top in nodes for node in sympy.preorder_traversal(top))


def _enormous_here(node: Any) -> bool:
    if not isinstance(node, (sympy.Pow, sympy.factorial, sympy.binomial)):
        return False
    if isinstance(node, sympy.Pow) and node.base.free_symbols and not node.exp.free_symbols:
        return digits(node.exp) > math.log10(MOST_FACTORS)
    return digits(node) > MOST_DIGITS


def digits(node: Any) -> float:
    """An upper bound, roughly, of log10 |node|, without computing it. Symbols and functions count as one digit."""
    if isinstance(node, sympy.Integer):
        return math.log10(abs(int(node))) if node else 0.0
    if isinstance(node, sympy.Rational):
        return max(digits(sympy.Integer(node.p)), digits(sympy.Integer(node.q)))
    if isinstance(node, sympy.Float):
        return abs(math.log10(abs(float(node)))) if math.isfinite(float(node)) and float(node) else 0.0
    inner = [digits(argument) for argument in node.args]
    if isinstance(node, sympy.Add):
        return max(inner) + math.log10(len(inner))
    if isinstance(node, sympy.Mul):
        return sum(inner)
    if isinstance(node, sympy.Pow):
        return max(inner[0], 0.1) * _power_of_ten(inner[1])
    if isinstance(node, (sympy.factorial, sympy.binomial)):
        return max(inner[0], 0.1) * _power_of_ten(inner[0])
    return max(inner, default=1.0)


def _power_of_ten(exponent: float) -> float:
    return 10.0**exponent if exponent < 300 else math.inf
