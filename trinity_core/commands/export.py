"""``trinity export RUN DIR``"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trinity_core.commands.arguments import positional, run_folder

USAGE = """usage: trinity export RUN DIR

Writes the policy of a run's newest checkpoint to DIR as a plain model folder that other libraries load."""


def main(argv: Sequence[str]) -> int:
    words = positional(argv, USAGE, ["RUN", "DIR"])
    if words is None:
        return 0
    from trinity_core.run.export import export

    print(export(run_folder(words[0]), Path(words[1])))
    return 0
