"""vLLM on the CPU, eager: one side of ``sampling.py``, run by the Python of vLLM's environment. Reads a JSON file, then takes turns.

It returns no log-probabilities, which makes it faster; the prefix cache is emptied before every repetition, because the weights
of a policy change at every step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from turns import tell, turns

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")


def main() -> None:
    from vllm import LLM, SamplingParams

    given = json.loads(Path(sys.argv[1]).read_text())
    engine = LLM(
        model=given["model"],
        dtype=given["dtype"],
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=64,
        enable_prefix_caching=True,
    )
    for name in turns():
        shape = given["shapes"][name]
        prompts = [{"prompt_token_ids": prompt} for prompt in shape["prompts"]]
        new = shape["new"]
        params = SamplingParams(
            n=shape["samples"],
            temperature=1.0,
            min_tokens=new,
            max_tokens=new,
            ignore_eos=True,
            detokenize=False,
        )
        engine.reset_prefix_cache()
        begin = time.perf_counter()
        out = engine.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        lengths = [len(one.token_ids) for request in out for one in request.outputs]
        assert lengths == [new] * (len(prompts) * shape["samples"]), lengths
        tell(seconds=seconds)


if __name__ == "__main__":
    main()
