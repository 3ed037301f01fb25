"""What a step of the quickstart spends on anything but the model.

``python benchmarks/overhead.py`` runs the recipe ``quickstart`` (SmolLM2-135M, 8 groups of 8) for some steps, twice: with
10 and with 10,000 groups in its ledger beforehand. Model compute is forward, backward, optimizer and sampling, and the weights'
way to the engine; the *overhead* of a step is all the rest of its wall time, waits of the event loop included: rendering,
tokenizing, rewards, ledger, receipts, assembling, packing, credit, statistics, metrics, trackers. Both are taken by a clock
around the calls into the model, from outside; the product is not changed. What happens beside the model, on another thread while
it computes, is not overhead. The first step is left out; checkpoints are reported
apart.

*waiting, loop* is what has no name of its own: the event loop with the attempts it plays, and its waits for threads and for the
reward's process; *inside a wave* and *inside an update* are what engine and backend do around their products (rows, packing,
counting); *what moved* is the comparison of weights before and after the optimizer; *assembling, credit* turns groups into a batch
with advantages. A name's figure is a median of its own, so they do not add up exactly.

It exits 1 where the overhead is 2 % of a step or more, or a full ledger makes it grow by as much.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import inspect
import json
import shutil
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import common

COMPUTE = ("sampling", "forward", "loss", "backward", "optimizer", "weights")
REST = "waiting, loop"
WORDS = ("recipe=quickstart", "eval.before=false", "eval.after=false", "eval.every=0", "checkpoint.every=0")
BEFORE = (10, 10_000)
"""Groups in the ledger before the run."""


class Clock:
    """When which named call ran, on any thread. A mark ends a step."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, float, str]] = []
        self.steps: list[dict[str, float]] = []
        self.apart: dict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.calls.append((began, time.perf_counter(), name))

    def mark(self) -> None:
        now, calls = time.perf_counter(), self.calls
        self.calls = []
        self.steps.append({"wall": now - self._since, **divide(calls, self._since, now)})
        self._since = now

    def around(self, owner: Any, name: str, label: str | Callable[[], str]) -> None:
        """Time every call of ``owner.name`` from here on. Waiting for a coroutine is not work: it is not timed."""
        function = getattr(owner, name)
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{name} waits: time what it calls")

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.timed(label if isinstance(label, str) else label()):
                return function(*args, **kwargs)

        setattr(owner, name, timed)


def divide(calls: list[tuple[float, float, str]], begin: float, end: float) -> dict[str, float]:
    """Seconds between ``begin`` and ``end`` by name, each moment counted once: for the model where it computes on some
    thread, else for the call that began last, else for ``REST``."""
    turns = sorted(
        turn
        for number, (start, stop, _) in enumerate(calls)
        for turn in ((max(start, begin), 1, number), (min(stop, end), 0, number))
        if stop > begin
    )
    spent: dict[str, float] = defaultdict(float)
    running: dict[int, str] = {}
    now = begin
    for moment, starts, number in [*turns, (end, 0, -1)]:
        if moment > now:
            models = [name for name in running.values() if name in COMPUTE]
            spent[next(reversed(models or list(running.values())), REST)] += moment - now
            now = moment
        if starts:
            running[number] = calls[number][2]
        else:
            running.pop(number, None)
    return dict(spent)


def instrument(clock: Clock) -> None:
    """The clock around the model, and around what else can be named."""
    import torch
    import transformers

    def module(name: str) -> Any:
        return importlib.import_module(f"trinity_core.{name}")

    causal, live = module("builtins.models.causal"), module("builtins.backends.local.live")
    wave, engine = module("builtins.engines.hf_wave"), module("builtins.engines.hf_live")
    loop, state, checkpoint = module("run.loop"), module("run.state"), module("run.checkpoint")

    def side() -> str:
        return "sampling" if threading.current_thread().name.startswith("hf") else "forward"

    # the model
    for name in ("hidden", "hidden_of_blocks", "logits"):
        clock.around(causal.CausalLM, name, side)
    for name in ("head_outputs", "token_outputs"):
        clock.around(live, name, "forward")
    decoder, rows = module("builtins.engines.hf_decoder").Decoder, module("builtins.engines.hf_rows").Rows
    clock.around(decoder, "hidden", "sampling")
    clock.around(decoder, "logits", "sampling")
    clock.around(decoder, "refresh", "weights")
    clock.around(rows, "keep", "sampling")
    clock.around(wave, "draw", "sampling")
    clock.around(transformers.DynamicCache, "batch_select_indices", "sampling")
    clock.around(module("algo.objective").Objective, "__call__", "loss")
    for owner, name in ((torch.Tensor, "backward"), (torch.autograd, "backward"), (torch.autograd, "grad")):
        clock.around(owner, name, "backward")
    clock.around(torch.optim.AdamW, "step", "optimizer")
    clock.around(torch.optim.AdamW, "zero_grad", "optimizer")
    clock.around(torch.nn.utils, "get_total_norm", "optimizer")
    clock.around(torch, "_foreach_mul_", "optimizer")
    clock.around(live.LiveLocal, "publish", "weights")
    clock.around(engine.LiveHF, "_receive", "weights")
    # all else that has a name; what is left is the event loop and what it waits for
    clock.around(wave.Wave, "play", "inside a wave")
    clock.around(live.LiveLocal, "update", "inside an update")
    clock.around(live.LiveLocal, "measure", "inside an update")
    clock.around(module("builtins.backends.local.moved").Moved, "before", "what moved")
    clock.around(module("builtins.backends.local.moved").Moved, "share", "what moved")
    clock.around(loop, "prepare", "assembling, credit")
    clock.around(module("rollout.score"), "pack", "packing for rewards")
    clock.around(module("rollout.pool").Worker, "receive", "rewards")
    clock.around(loop, "step_metrics", "metrics")
    clock.around(state.Training, "chain", "metrics")
    clock.around(module("rollout.renderer").Renderer, "render", "rendering")
    clock.around(module("rollout.renderer").Renderer, "text", "rendering")
    clock.around(module("rollout.recorder").Recorder, "record", "recording")
    ledger = module("builtins.buffers.sql_ledger").SqlLedger
    for name in ("put_all", "filled", "index", "lease", "read", "commit", "taken", "enter", "in_flight", "first_in_flight", "short",
                 "announce", "acknowledge", "say", "renew_places"):  # fmt: skip
        clock.around(ledger, name, "ledger")
    tell, write = module("run.context").Run.tell, checkpoint.write

    def telling(run: Any, moment: str, *args: Any) -> None:
        with clock.timed("trackers"):
            tell(run, moment, *args)
        if moment == "step":
            clock.mark()

    def saving(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return write(*args, **kwargs)
        finally:
            clock.apart["checkpoint"] += time.perf_counter() - began

    module("run.context").Run.tell = telling
    checkpoint.write = saving


def fill(groups: int) -> None:
    """Give the ledger of the next run a past: so many groups that were trained, and take no place of its own."""
    import numpy as np
    from buffer import group
    from sqlalchemy import update

    from trinity_core.builtins.buffers import sql_ledger, tables

    begin = sql_ledger.SqlLedger.begin

    def beginning(ledger: Any, position: Any, *, ordered: bool) -> int:
        lineage = begin(ledger, position, ordered=ordered)
        made, ids = group(np.random.default_rng(0), tokens=60), []
        for number in range(groups):
            one = dataclasses.replace(made, id=f"past/{number}", draw=-1)
            ledger.put(one)
            ids.append(one.id)
        for start in range(0, groups, 500):
            ledger.commit(ledger.lease(ids[start : start + 500], owner="past", step=0, ttl_s=600.0), 0)
        with ledger._store.write(lineage) as write:
            write(update(tables.meta).where(tables.meta.c.run == ledger._store.run).values(counted=0))
            write.meta.counted = 0
        return lineage

    sql_ledger.SqlLedger.begin = beginning


def inside(before: int, steps: int, folder: Path) -> None:
    """One run, in this process; a JSON line on stdout."""
    from trinity_core.cli import main as trinity

    clock = Clock()
    instrument(clock)
    fill(before)
    with contextlib.redirect_stdout(sys.stderr):
        if code := trinity(["run", *WORDS, f"steps={steps}", f"out={folder}"]):
            raise SystemExit(code)
    print(json.dumps({"steps": clock.steps[1:], "apart": clock.apart}))


def shares(steps: list[dict[str, float]]) -> dict[str, float]:
    """Medians over the steps: wall, compute, overhead in seconds, overhead as a share, and seconds of each name."""
    for step in steps:
        step["compute"] = sum(step.get(name, 0.0) for name in COMPUTE)
        step["overhead"] = step["wall"] - step["compute"]
        step["share"] = step["overhead"] / step["wall"]
    return {
        name: common.median([step.get(name, 0.0) for step in steps]) for name in sorted({n for s in steps for n in s})
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="steps that are timed")
    parser.add_argument("--before", type=int, nargs="+", default=list(BEFORE), help="groups in the ledger beforehand")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside is not None:
        inside(given.before[0], given.steps + 1, given.inside)
        return
    busy = common.quiet_or_warn()
    root = Path(tempfile.mkdtemp(prefix="overhead-"))
    found: dict[int, dict[str, float]] = {}
    apart: dict[str, float] = {}
    try:
        for before in given.before:
            folder = root / str(before)
            words = [sys.executable, __file__, "--inside", folder, "--steps", str(given.steps), "--before", str(before)]
            said = common.last_json(common.run(words).stdout)
            found[before], apart = shares(said["steps"]), said["apart"]
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"seconds of a step (medians of {given.steps}), with so many groups in the ledger beforehand")
    print(f"{'':<22}" + "".join(f"{before:>10,}" for before in found))
    names = sorted(
        {name for one in found.values() for name in one} - {"share", *COMPUTE, "wall", "compute", "overhead"}
    )
    for name in ("wall", "compute", *COMPUTE, "overhead", *names):
        print(f"{name:<22}" + "".join(f"{one.get(name, 0.0):>10.4f}" for one in found.values()))
    few, many = found[given.before[0]], found[given.before[-1]]
    figures = {
        "step_s": few["wall"],
        "compute_s": few["compute"],
        "overhead_ms": 1e3 * few["overhead"],
        "overhead_share": few["share"],
        f"overhead_after_{given.before[-1]}_ms": 1e3 * many["overhead"],
        f"overhead_after_{given.before[-1]}_share": many["share"],
        **{f"{name.replace(', ', '_').replace(' ', '_')}_ms": 1e3 * few.get(name, 0.0) for name in names},
        "checkpoint_s": apart.get("checkpoint"),
    }
    limits = {"overhead_share": "< 0.02", f"overhead_after_{given.before[-1]}_share": "< 0.02"}
    notes = [f"medians of {given.steps} steps of recipe=quickstart, the first left out; the checkpoint is in no step"]
    common.finish("overhead", figures, limits, notes=notes, busy=busy)


if __name__ == "__main__":
    main()
