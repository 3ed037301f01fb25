"""Everything in the process that was started."""

from __future__ import annotations

from dataclasses import dataclass

from trinity_core.protocols import Runtime


@dataclass(frozen=True)
class InProcess(Runtime):
    """Explorer, buffer and trainer share this process; further explorers join through a shared buffer."""
