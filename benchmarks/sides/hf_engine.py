"""Trinity's engine ``hf`` with the weights that a run gives it: one side of ``sampling.py``. Reads a JSON file, prints one JSON line.

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

from trinity_core.config.check import check
from trinity_core.config.compose import composer
from trinity_core.run.context import Run
from trinity_core.types import Key, Request, Sampling


async def measure(given: dict, run: Run) -> dict:
    backend = run.open("backend", run.config.part("backend"))
    engine = run.open("engine", run.config.part("engine"))
    engine.tokenizer.eos_ids = frozenset()  # nothing ends a reply but its length
    results, version = {}, 0
    loads = []
    for name, shape in given["shapes"].items():
        rows = [prompt for prompt in shape["prompts"] for _ in range(shape["samples"])]
        seconds = []
        for repeat in range(given["repeats"] + 1):
            begin = time.perf_counter()
            version += 1
            await engine.load(backend.publish(version, copy=False))
            loads.append(time.perf_counter() - begin)
            requests = [
                Request(
                    Key("numbers", row, repeat, 0),
                    np.array(tokens, np.int32),
                    Sampling(temperature=1.0, max_tokens=shape["new"]),
                    seed=repeat * len(rows) + row,
                )
                for row, tokens in enumerate(rows)
            ]
            begin = time.perf_counter()
            completions = await engine.generate_wave(requests)
            seconds.append(time.perf_counter() - begin)
            assert [len(one.tokens_N) for one in completions] == [shape["new"]] * len(rows)
        print(f"hf {name}: {' '.join(f'{s:.2f}' for s in seconds)} s", file=sys.stderr, flush=True)
        results[name] = seconds[1:]
    return {"seconds": results, "load_s": loads[1:]}


async def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text())
    with composer() as loader:
        config = check(loader.compose(["recipe=quickstart", *given["words"]]))
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, id="bench", dir=Path(folder))
        try:
            result = await measure(given, run)
        finally:
            await run.end({})
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
