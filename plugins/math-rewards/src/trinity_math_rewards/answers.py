"""Where the answer stands in a text. Plain string work, linear in the length of the text."""

from __future__ import annotations

import functools
import re

LONGEST = 512
"""Characters of an answer; what is longer is an essay, not an answer."""
TAIL = 4096
"""Characters at the end of a text in which an unmarked answer is looked for."""

# Escapes are consumed in pairs, so that the brace of "\{" (a set) is not taken for a group, but that of "\\{" is.
_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
# Display maths, inline maths, then bare numbers: 1,234.5  -3/4  $18  50%
_NUMBER = r"(?:(?<![\w.)\]}])[-+−])?(?:\\?\$\s?)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:\s?/\s?\d+(?:\.\d+)?)?(?:\s?\\?%)?|(?<!\d)\.\d+"
_LAST = re.compile(rf"\$\$([^$]+)\$\$|(?<!\\)\$([^$\n]+)(?<!\\)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|({_NUMBER})", re.DOTALL)


def last_boxed(text: str) -> tuple[int, str] | None:
    r"""(end, content) of the ``\boxed{…}`` that closes last; ``None`` if none closes. Braces may nest to any depth."""
    found: tuple[int, str] | None = None
    open_at: list[int] = []  # start of the content of each open brace; negative for a plain group
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == "{":
            open_at.append(-1)
        elif token == "}":
            start = open_at.pop() if open_at else -1
            if start >= 0:
                found = (match.end(), text[start : match.start()])
        elif token.endswith("{") and len(token) > 2:
            open_at.append(match.end())
    return found


@functools.lru_cache(maxsize=16)
def _tag(name: str) -> tuple[str, str]:
    return f"<{name}>", f"</{name}>"


def last_tagged(text: str, tag: str) -> tuple[int, str] | None:
    """(end, content) of the last ``<tag>…</tag>``; ``None`` if there is none."""
    opening, closing = _tag(tag)
    stop = text.rfind(closing)
    start = text.rfind(opening, 0, stop) if stop >= 0 else -1
    return None if start < 0 else (stop + len(closing), text[start + len(opening) : stop])


def marked_answer(text: str, tag: str = "answer") -> str | None:
    r"""The last answer that the text marks as one: in ``\boxed{…}`` or in ``<tag>…</tag>``, whichever ends last.

    A box inside the tag wins over the words around it. ``None`` if nothing is marked.
    """
    boxed = last_boxed(text)
    tagged = last_tagged(text, tag) if tag else None
    if tagged and (boxed is None or tagged[0] > boxed[0]):
        inside = last_boxed(tagged[1])
        return (inside[1] if inside else tagged[1]).strip()
    return boxed[1].strip() if boxed else None


def last_expression(text: str) -> str | None:
    """The last number or piece of LaTeX maths in the last :data:`TAIL` characters; ``None`` if there is none."""
    found = list(_LAST.finditer(text[-TAIL:]))
    return next(group for group in found[-1].groups() if group is not None).strip() if found else None
