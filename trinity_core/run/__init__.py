"""A run: from a checked config to a folder with everything it did.

``loop.py`` holds the two loops; ``session.py`` opens and closes the parts; the other modules are what the loops call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity_core.config.schema import RunConfig


def start(config: RunConfig, words: Sequence[str], *, out: Path | None = None) -> dict[str, Any]:
    """Run ``config`` (composed from ``words``) and return its summary. ``out`` wins over ``config.out``."""
    from trinity_core.run.session import start as start_session

    return start_session(config, list(words), out=out)
