"""How a side takes turns with others: it says when it is ready, then does what it is told, one word a line, until there is no more."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator


def turns() -> Iterator[str]:
    """The words that are told to this side. Each is answered with :func:`tell`."""
    tell(ready=True)
    for line in sys.stdin:
        yield line.strip()


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)
