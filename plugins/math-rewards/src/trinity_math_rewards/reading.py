"""Answers as mathematics: read with math-verify, compared with math-verify.

math-verify guards itself with ``signal.alarm``, which raises anywhere but on the main thread. Its timeouts are switched
off here: rewards run in a process pool that ends a call that takes too long.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from trinity_math_rewards.answers import LONGEST
from trinity_math_rewards.magnitude import enormous

DEEPEST = 32
"""Brackets inside brackets of an answer."""


class _Quiet(logging.Filter):
    """Drops the one line that says what the docstring above says."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Timeout is disabled")


for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).addFilter(_Quiet())

_LATEX = [LatexExtractionConfig(boxed_match_priority=0)]
_PLAIN = [ExprExtractionConfig()]
_SIGNS = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": r"\times ",
        "·": r"\cdot ",
        "÷": r"\div ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "°": "",
        "％": "%",
    }
)
_HALVES = {"½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}"}
_MONEY = re.compile(r"(?:\\?\$|€|£|¥|\b(?:USD|EUR|GBP)\b)\s*(?=[-+.\d])|(?<=\d)\s*(?:\\?\$|€|£|¥|\b(?:USD|EUR|GBP)\b)")
_THOUSANDS = re.compile(r"(?<![\d.])(\d{1,3})((?:(?:\\[,!: ]|\{,\}|~|\u202f|\u00a0)\d{3})+)(?!\d)")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_MIXED = re.compile(r"^(-?)\s*(\d+)\s+(\d+)\s*/\s*(\d+)$")
_E_NOTATION = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})(?!\w)")
_UNIT_TEXT = re.compile(r"(?<=[\d})%])\s*\\(?:text|mathrm|textrm|textbf|rm)\s*\{[^{}\d]*\}(?:\^\{?\d\}?)?\s*$")
_UNIT_WORDS = re.compile(
    r"^([-+]?[\d.,/]*\d|[-+]?\\[dt]?frac\{\d+\}\{\d+\})(?:\s*\\?%|)\s*(?!and\b|or\b|pi\b)[A-Za-z]{3,}(?:\s+[A-Za-z]+)*$"
)
_TEXT_ONLY = re.compile(r"^\\(?:text|mathrm|textrm|textbf|mathbf)\s*\{([^{}]*)\}$")
_PERCENT = re.compile(r"^([-+]?(?:\d+(?:\.\d+)?|\.\d+))\s*\\?(?:%|percent\b)$")
_MANY_DIGITS = re.compile(r"\d{400}")


def clean(answer: str) -> str:
    """The answer without what carries no mathematics: dollar signs, units, thousands separators, a final full stop."""
    text = answer.strip().translate(_SIGNS)
    for sign, latex in _HALVES.items():
        text = text.replace(sign, latex)
    for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
            text = text[len(left) : -len(right)].strip()
    text = text.rstrip(" .;:").replace(r"\left", "").replace(r"\right", "").replace(r"\displaystyle", "")
    text = _MONEY.sub("", text)
    text = _THOUSANDS.sub(lambda m: m[1] + re.sub(r"\D", "", m[2]), text)
    if not re.search(r"[(\[{]", text):
        text = _GROUPED.sub(lambda m: m[0].replace(",", ""), text)
    text = _UNIT_TEXT.sub("", text).strip()
    if only := _TEXT_ONLY.match(text):
        inner = only[1].strip()
        text = inner if re.match(r"[-+]?[\d.]", inner) else text
    if words := _UNIT_WORDS.match(text):
        text = text if re.search(r"percent", text) else words[1]
    if mixed := _MIXED.match(text):
        text = f"{mixed[1]}({mixed[2]}+\\frac{{{mixed[3]}}}{{{mixed[4]}}})"
    text = _E_NOTATION.sub(r"\1 \\cdot 10^{\2}", text)
    return text


@functools.lru_cache(maxsize=4096)
def read(answer: str) -> tuple[Any, ...]:
    """The readings of one answer, most literal first; empty if it is no mathematics. A percentage has two: 50% is 0.5,
    and is written as 50 where the question asks for percent."""
    if not answer.strip() or len(answer) > LONGEST or _MANY_DIGITS.search(answer) or _deep(answer):
        return ()
    text = clean(answer)
    if percent := _PERCENT.match(text):
        return _parse(f"\\frac{{{percent[1]}}}{{100}}") + _parse(percent[1])
    return _parse(text)


def _deep(text: str) -> bool:
    """Whether brackets nest so deep that the parser's time grows out of hand."""
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest > DEEPEST


def _parse(text: str) -> tuple[Any, ...]:
    for source, config in ((f"${text}$", _LATEX), (text, _PLAIN)):
        # fallback_mode no_fallback: a string that could not be read is not an answer
        found = parse(source, config, fallback_mode="no_fallback", parsing_timeout=None)
        if found:
            return () if enormous(found[0]) else tuple(found[:1])
    return ()


@functools.lru_cache(maxsize=4096)
def readable(gold: str) -> bool:
    """Whether a gold answer can be read and equals itself: only then does "not equal" say anything about a prediction."""
    readings = read(gold)
    return bool(readings) and verify(gold=readings[0], target=readings[0], timeout_seconds=None)


def equal(gold: str, prediction: str, digits: int) -> bool:
    """Whether the prediction is the gold answer, numbers compared to ``digits`` decimal places.

    Not symmetric (``3`` answers ``x = 3``), hence the keywords: gold is gold.
    """
    truths, claims = read(gold), read(prediction)
    # Two percentages are compared as written: crossing their readings would make 0.5% equal 50%.
    pairs = zip(truths, claims, strict=True) if len(truths) == len(claims) else itertools.product(truths, claims)
    return any(verify(gold=truth, target=said, float_rounding=digits, timeout_seconds=None) for truth, said in pairs)
