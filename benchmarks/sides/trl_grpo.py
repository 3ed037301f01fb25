"""TRL's GRPOTrainer on prompts from a file: the other side of ``grpo_vs_trl.py``, run by the Python of TRL's environment.

It reads a JSON file (model folder, prompts as chat messages with their answers, sizes) and prints one JSON line. Every choice
here is the one that makes TRL faster: weights in float32, under bfloat16 autocast where the hardware multiplies that, no reference model, no gradient checkpointing,
no logging of completions, old log-probabilities not computed.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def last_line(text: str) -> str:
    """As the reward ``exact`` of Trinity reads an answer."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removesuffix(".").strip() if lines else ""


class Watch(TrainerCallback):
    """The wall time at the end of each step, and what TRL logs of it."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.logs: list[dict] = []

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.ends.append(time.perf_counter())
        print(f"TRL step {len(self.ends)}", file=sys.stderr, flush=True)

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if logs and "reward" in logs:
            self.logs.append(logs)


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(given["threads"])
    played: list[str] = []

    def exact(prompts, completions, answer, **kwargs) -> list[float]:
        played.extend(prompt[-1]["content"] for prompt in prompts)
        return [
            float(last_line(one[0]["content"]) == last_line(gold))
            for one, gold in zip(completions, answer, strict=True)
        ]

    samples = given["groups_per_step"] * given["group_size"]
    micro = given["batch"]
    config = GRPOConfig(
        output_dir=given["out"],
        use_cpu=True,
        bf16=given["dtype"] == "bfloat16",
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=samples // micro,
        num_generations=given["group_size"],
        max_completion_length=given["max_response"],
        temperature=1.0,
        learning_rate=given["lr"],
        lr_scheduler_type="constant",
        adam_beta2=0.99,
        weight_decay=0.0,
        max_grad_norm=1.0,
        loss_type="grpo",
        beta=0.0,
        num_iterations=1,
        max_steps=given["steps"],
        shuffle_dataset=False,
        disable_dropout=True,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=0,
    )
    watch = Watch()
    trainer = GRPOTrainer(
        model=given["model"],
        reward_funcs=exact,
        args=config,
        train_dataset=Dataset.from_list(given["prompts"]),
        processing_class=AutoTokenizer.from_pretrained(given["model"]),
        callbacks=[watch],
    )
    begin = time.perf_counter()
    trainer.train()
    ends = [begin, *watch.ends]
    result = {
        "step_s": [after - before for before, after in itertools.pairwise(ends)],
        "reward": [float(logs["reward"]) for logs in watch.logs],
        "zero_spread": [round(float(logs["frac_reward_zero_std"]) * given["groups_per_step"]) for logs in watch.logs],
        "mean_tokens": [float(logs["completions/mean_length"]) for logs in watch.logs],
        "samples": len(played),
        "questions": played[:: given["group_size"]],
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
