"""``trinity digest RUN``"""

from __future__ import annotations

from collections.abc import Sequence

from trinity_core.commands.arguments import positional, run_folder

USAGE = """usage: trinity digest RUN

One hash of what a run computed: weights, optimizer, RNG, states, groups in order of draw, metrics; without run ids, paths
and times. Two runs of one config and seed have equal digests."""


def main(argv: Sequence[str]) -> int:
    words = positional(argv, USAGE, ["RUN"])
    if words is None:
        return 0
    from trinity_core.run.digest import digest

    print(digest(run_folder(words[0])))
    return 0
