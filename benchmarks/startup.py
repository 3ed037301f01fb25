"""How long the command line takes to answer. Medians of fresh processes; nothing heavy may be loaded."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import common

LIMITS_S = {"--help": 0.15, "version": 0.15, "plugins": 0.4}
"""Word -> largest median."""
HEAVY = ("torch", "transformers", "hydra")
CODE = """
import sys
from trinity_core.cli import main
sys.argv = ["trinity", *sys.argv[1:]]
code = main()
loaded = [name for name in {heavy!r} if name in sys.modules]
sys.exit(f"loads {{loaded}}" if loaded else code)
"""


def seconds(word: str) -> float:
    """One fresh process, from start to exit."""
    command = [sys.executable, "-c", CODE.format(heavy=HEAVY), word]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    taken = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"trinity {word}: {done.stderr.strip()}")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=11, help="processes per word")
    repeat = parser.parse_args().repeat
    busy = common.quiet_or_warn()
    figures: dict[str, object] = {}
    limits = {}
    for word, limit in LIMITS_S.items():
        seconds(word)  # the first one fills the file cache
        name = f"{word.removeprefix('--')}_s"
        figures[name] = common.median(seconds(word) for _ in range(repeat))
        limits[name] = f"<= {limit}"
    notes = [f"medians of {repeat} fresh processes; none of them loads {', '.join(HEAVY)}"]
    common.finish("startup", figures, limits, notes=notes, busy=busy)


if __name__ == "__main__":
    main()
