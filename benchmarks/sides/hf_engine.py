"""Trinity's engine ``hf`` with the weights that a run gives it: one side of ``sampling.py``. Reads a JSON file, then takes turns.

Backend and engine are opened by a run's own config, the backend publishes as it does after a step, and the engine loads that.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from turns import tell, turns

from trinity_core.config.check import check
from trinity_core.config.compose import composer
from trinity_core.run.context import Run
from trinity_core.types import Key, Request, Sampling


async def measure(given: dict, run: Run) -> None:
    backend = run.open("backend", run.config.part("backend"))
    engine = run.open("engine", run.config.part("engine"))
    engine.tokenizer.eos_ids = frozenset()  # nothing ends a reply but its length
    for turn, name in enumerate(turns()):
        shape = given["shapes"][name]
        rows = [prompt for prompt in shape["prompts"] for _ in range(shape["samples"])]
        requests = [
            Request(
                Key("numbers", row, turn, 0),
                np.array(tokens, np.int32),
                Sampling(temperature=1.0, max_tokens=shape["new"]),
                seed=turn * len(rows) + row,
            )
            for row, tokens in enumerate(rows)
        ]
        weights = backend.publish(turn, copy=False)
        begin = time.perf_counter()
        await engine.load(weights)
        completions = await engine.generate_wave(requests)
        seconds = time.perf_counter() - begin
        assert [len(one.tokens_N) for one in completions] == [shape["new"]] * len(rows)
        tell(seconds=seconds)


async def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text())
    with composer() as loader:
        config = check(loader.compose(["recipe=quickstart", *given["words"]]))
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, id="bench", dir=Path(folder))
        try:
            await measure(given, run)
        finally:
            await run.end({})


if __name__ == "__main__":
    asyncio.run(main())
