"""What every runtime keeps to. Provisional: only ``inprocess`` exists, and it has nothing to place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trinity_core.testing.rules import require
from trinity_core.testing.subject import Subject, close, run_for


def two_runs_share_nothing(component: Any, tmp: Path) -> None:
    """Closing one run's runtime leaves another's open."""
    first = component.open(run_for(Subject("runtime", ""), component, tmp))
    second = component.open(run_for(Subject("runtime", ""), component, tmp))
    close(first)
    close(second)
    require(first is not None and second is not None, "open() returned nothing")


RULES = {"two runs share nothing": two_runs_share_nothing}
