"""transformers' ``generate``: one side of ``sampling.py``. Reads a JSON file, prints one JSON line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(given["threads"])
    model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=getattr(torch, given["dtype"])).eval()
    results = {}
    for name, shape in given["shapes"].items():
        rows = [prompt for prompt in shape["prompts"] for _ in range(shape["samples"])]
        longest, new = max(map(len, rows)), shape["new"]
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        seconds = []
        for repeat in range(given["repeats"] + 1):
            torch.manual_seed(repeat)
            begin = time.perf_counter()
            out = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_new_tokens=new,
                max_new_tokens=new,
                pad_token_id=0,
            )
            seconds.append(time.perf_counter() - begin)
            assert out.shape == (len(rows), longest + new)
        print(f"generate {name}: {' '.join(f'{s:.2f}' for s in seconds)} s", file=sys.stderr, flush=True)
        results[name] = seconds[1:]
    print(json.dumps({"seconds": results}), flush=True)


if __name__ == "__main__":
    main()
