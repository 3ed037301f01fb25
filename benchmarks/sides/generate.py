"""transformers' ``generate``: one side of ``sampling.py``. Reads a JSON file, then takes turns."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from turns import tell, turns


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(given["threads"])
    model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=getattr(torch, given["dtype"])).eval()
    for turn, name in enumerate(turns()):
        shape = given["shapes"][name]
        rows = [prompt for prompt in shape["prompts"] for _ in range(shape["samples"])]
        longest, new = max(map(len, rows)), shape["new"]
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        torch.manual_seed(turn)
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
        seconds = time.perf_counter() - begin
        assert out.shape == (len(rows), longest + new)
        tell(seconds=seconds)


if __name__ == "__main__":
    main()
