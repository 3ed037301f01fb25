"""The ledger under load: experiences a second that are put and leased, and whether its cost stays flat as it fills.

``python benchmarks/buffer.py`` uses the buffer ``sql`` as a run has it by default (SQLite in a folder, its durability): two
processes play (enter, put), one trains (index, lease, read, commit, announce). A group is 8 attempts with one experience of
20 kB each (tokens, origins, log-probabilities). Then it fills a ledger to 10, 100, 1,000 and 10,000 groups and times
each call at each size; groups stay in the ledger trained (as in a long run), then the last question is asked with as many
groups still to be trained. Limits: 2,000
experiences a second; what a group costs grows by no more than a quarter from 10 to 10,000, no single call doubles.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import common
import numpy as np

from trinity_core.builtins.buffers.sql import SQLBuffer
from trinity_core.types import Attempt, Call, Experience, Group, Ok, Origin, Sampling, Task

RUN = "benchmark"
ATTEMPTS, TOKENS = 8, 2222
"""9 bytes a token (int32, uint8, float32): 20 kB an experience."""
SIZES = (10, 100, 1_000, 10_000)
STEP = 32
"""Groups of a step."""
ROUNDS = 21
OF_A_GROUP = ("enter", "put", "lease", "read", "commit")


def group(rng: np.random.Generator, tokens: int = TOKENS) -> Group:
    """Eight attempts at one prompt, as play leaves them."""
    task = Task("task", ({"role": "user", "content": "the largest of 11, 12 and 13"},), "13", {"numbers": [11, 12, 13]})
    return Group("", task, [attempt(rng, task, number, tokens) for number in range(ATTEMPTS)], slot="numbers", row=1)


def attempt(rng: np.random.Generator, task: Task, number: int, tokens: int) -> Attempt:
    prompt = tokens // 10
    origin_T = np.full(tokens, Origin.SAMPLED, dtype=np.uint8)
    origin_T[:prompt] = Origin.CONTEXT
    logp_T = -rng.exponential(size=tokens).astype(np.float32)
    logp_T[:prompt] = np.nan
    call = Call(prompt, tokens, 0, [(0, prompt)], Sampling(max_tokens=tokens))
    tokens_T = rng.integers(0, 49152, tokens).astype(np.int32)
    talk = [*task.messages, {"role": "assistant", "content": "13"}]
    experience = Experience(tokens_T, origin_T, logp_T, [call])
    return Attempt([experience], text="13", messages=talk, score=Ok(1.0, {"exact": 1.0}), index=number, task=task)


def write(folder: str, name: str, together: bool) -> None:
    """One explorer: places as the gate gives them, a group for each; ``together``: put as one, as a run does with what ends together."""
    ledger = SQLBuffer().ledger(Path(folder), RUN, create=False)
    ledger.join()
    made = [group(np.random.default_rng(seed)) for seed in range(4)]
    while ledger.heard("status") != "finished":
        newest = ledger.newest()
        version = newest[0] if newest else 0
        openings = ledger.enter(name, 8, (version + 3) * STEP, version=version, ttl_s=60.0)
        played: list[tuple[Group, str | None]] = []
        for opening in openings:
            one = dataclasses.replace(made[opening.draw % len(made)], id=f"{RUN}/{opening.draw:08d}", draw=opening.draw)
            played.append((one, opening.place))
        for some in [played] if together else [[one] for one in played]:
            ledger.put_all(some)
        if not openings:
            time.sleep(0.001)
    ledger.close()


def rate(folder: Path, steps: int, windows: int = 5, *, together: bool) -> list[float]:
    """Experiences a second, over each of ``windows`` equal parts of ``steps`` steps."""
    ledger = SQLBuffer().ledger(folder, RUN, create=True)
    ledger.begin(None, ordered=False)
    ledger.announce(0, "")
    start = multiprocessing.get_context("spawn")
    writers = [start.Process(target=write, args=(str(folder), f"explorer-{n}", together)) for n in (1, 2)]
    for writer in writers:
        writer.start()
    moments, size = [], steps // windows
    for step in range(1, steps + size + 1):
        while len(index := ledger.index()) < STEP:
            time.sleep(0.001)
        lease = ledger.lease([entry.id for entry in index[:STEP]], owner="trainer", step=step, ttl_s=60.0)
        groups = ledger.read(lease.group_ids)
        assert sum(len(one.attempts) for one in groups) == STEP * ATTEMPTS
        ledger.commit(lease, step)
        ledger.announce(step, "")
        if step >= size and step % size == 0:  # what was before is the start of the processes
            moments.append(time.perf_counter())
    ledger.say("status", "finished")
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    ledger.close()
    return [size * STEP * ATTEMPTS / (after - before) for before, after in itertools.pairwise(moments)]


def flat(folder: Path, sizes: tuple[int, ...]) -> dict[str, dict[int, float]]:
    """Seconds of each call, per group or per call, with so many trained groups in the ledger; medians of ``ROUNDS``."""
    ledger = SQLBuffer().ledger(folder, RUN, create=True)
    ledger.begin(None, ordered=False)
    made = group(np.random.default_rng(0))
    found: dict[str, dict[int, float]] = {}
    step = 0

    def once() -> dict[str, float]:
        nonlocal step
        step += 1
        times: dict[str, float] = {}

        def timed(name: str, call: Callable[[], object], per: int = 1):
            began = time.perf_counter()
            result = call()
            times[name] = (time.perf_counter() - began) / per
            return result

        openings = timed("enter", lambda: ledger.enter("me", 8, 10**9, version=step, ttl_s=600.0), 8)
        groups = [dataclasses.replace(made, id=f"{RUN}/{o.draw:08d}", draw=o.draw) for o in openings]
        timed("put", lambda: [ledger.put(g, place=o.place) for g, o in zip(groups, openings)], 8)
        timed("taken", ledger.taken)
        timed("in_flight", ledger.in_flight)
        timed("first_in_flight", ledger.first_in_flight)
        index = timed("index", ledger.index)
        ids = [entry.id for entry in index[:8]]
        lease = timed("lease", lambda: ledger.lease(ids, owner="me", step=step, ttl_s=600.0), 8)
        timed("read", lambda: ledger.read(ids), 8)
        timed("renew", lambda: ledger.renew(lease, 600.0), 8)
        timed("commit", lambda: ledger.commit(lease, step), 8)
        timed("short", lambda: ledger.short(step))
        timed("position", lambda: ledger.position(step))
        timed("newest", ledger.newest)
        timed("announce", lambda: ledger.announce(step, "somewhere"))
        timed("acknowledge", lambda: ledger.acknowledge("me", step, "digest"))
        timed("renew_places", lambda: ledger.renew_places("me", 600.0))
        return times

    for size in sizes:
        while step * 8 < size:
            once()
        many = [once() for _ in range(ROUNDS)]
        for name in many[0]:
            found.setdefault(name, {})[size] = common.median([times[name] for times in many])
    ledger.close()
    return found


def waiting(folder: Path, sizes: tuple[int, ...]) -> dict[int, float]:
    """Seconds of one ``index`` with so many groups that wait to be trained."""
    ledger = SQLBuffer().ledger(folder, RUN, create=True)
    ledger.begin(None, ordered=False)
    small = group(np.random.default_rng(0))
    small = dataclasses.replace(small, attempts=small.attempts[:1])
    found, stored = {}, 0
    for size in sizes:
        for draw in range(stored, size):
            ledger.put(dataclasses.replace(small, id=f"{RUN}/{draw:08d}", draw=draw))
        stored = size
        times = []
        for _ in range(5):
            began = time.perf_counter()
            assert len(ledger.index()) == size
            times.append(time.perf_counter() - began)
        found[size] = common.median(times)
    ledger.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help=f"steps of {STEP} groups that are timed")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="groups in the fullest ledger")
    parser.add_argument("--folder", type=Path, help="where the databases are made; default: a temporary folder")
    given = parser.parse_args()
    sizes = tuple(size for size in SIZES if size <= given.largest)
    busy = common.quiet_or_warn()
    root = Path(tempfile.mkdtemp(prefix="buffer-", dir=given.folder))
    folders = {name: root / name for name in ("rate", "alone", "flat", "waiting")}
    try:
        for folder in folders.values():
            folder.mkdir()
        rates = rate(folders["rate"], given.steps, together=True)
        shutil.rmtree(folders["rate"])
        alone = rate(folders["alone"], given.steps, together=False)
        shutil.rmtree(folders["alone"])
        table = flat(folders["flat"], sizes)
        shutil.rmtree(folders["flat"])
        looks = waiting(folders["waiting"], sizes)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(
        "microseconds with so many trained groups in the ledger; enter, put, lease, read, renew and commit: of one group"
    )
    print(f"{'':<18}" + "".join(f"{size:>10,}" for size in sizes))
    for name, row in table.items():
        print(f"{name:<18}" + "".join(f"{1e6 * row[size]:>10.0f}" for size in sizes))
    of_a_group = {size: sum(table[name][size] for name in OF_A_GROUP) for size in sizes}
    grown = {name: row[sizes[-1]] / row[sizes[0]] for name, row in table.items()}
    figures = {
        "experiences_per_s": common.median(rates),
        "experiences_of_single_groups_per_s": common.median(alone),
        **{f"group_{size}_ms": 1e3 * seconds for size, seconds in of_a_group.items()},
        "group_x": of_a_group[sizes[-1]] / of_a_group[sizes[0]],
        "largest_growth_x": max(grown.values()),
        **{f"index_of_{size}_waiting_ms": 1e3 * seconds for size, seconds in looks.items()},
    }
    notes = [
        f"experiences of {9 * TOKENS:,} bytes, {ATTEMPTS} a group, two processes put, one leases, reads and commits; median of "
        f"{len(rates)} parts of the run: {', '.join(f'{r:,.0f}' for r in rates)}; up to eight groups that end together are put as one, "
        "as in a run; for experiences_of_single_groups each alone",
        f"group_N_ms: {', '.join(OF_A_GROUP)} of one group with N trained groups in the ledger; medians of {ROUNDS}",
        f"largest growth from {sizes[0]:,} to {sizes[-1]:,} groups: {max(grown, key=lambda name: grown[name])}",
    ]
    limits = {"experiences_per_s": ">= 2000", "group_x": "<= 1.25", "largest_growth_x": "<= 2"}
    common.finish("buffer", figures, limits, notes=notes, busy=busy)


if __name__ == "__main__":
    main()
