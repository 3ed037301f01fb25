"""The words a contract speaks with. Imports nothing, so that every contract can."""

from __future__ import annotations


class NotApplicable(Exception):
    """A rule does not speak about this component; the message says why and is shown in the kit's report."""


def require(condition: object, message: str) -> None:
    """Fail a rule with a sentence. Unlike ``assert`` it survives ``python -O`` and needs no rewriting by pytest."""
    if not condition:
        raise AssertionError(message)
