"""``trinity version``"""

from __future__ import annotations

from collections.abc import Sequence

from trinity_core import __version__


def main(argv: Sequence[str]) -> int:
    print(__version__)
    return 0
