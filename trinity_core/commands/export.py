"""``trinity export RUN DIR``"""

from __future__ import annotations

import sys
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

    folder = export(run_folder(words[0]), Path(words[1]))
    print(folder)  # the folder alone on standard output, for scripts
    print(f"load it: {how_to_load(folder)}", file=sys.stderr)
    return 0


def how_to_load(folder: Path) -> str:
    """The line that loads an exported folder, as far as the folder says what it is."""
    if (folder / "tokenizer_config.json").is_file():
        return f'transformers.AutoModelForCausalLM.from_pretrained("{folder}"), or trinity run model.path={folder}'
    return f"trinity run model.path={folder}"
