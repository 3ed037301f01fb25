"""``trinity audit RUN``"""

from __future__ import annotations

from collections.abc import Sequence

from trinity_core.commands.arguments import positional, run_folder

USAGE = """usage: trinity audit RUN

Replays the ledger of a run and checks every event: nothing lost, nothing used twice, no write of an older lineage.
Exit code 0: clean."""


def main(argv: Sequence[str]) -> int:
    words = positional(argv, USAGE, ["RUN"])
    if words is None:
        return 0
    from trinity_core.run.audit import audit

    report = audit(run_folder(words[0]))
    print(report.text())
    return 0 if report.clean else 1
