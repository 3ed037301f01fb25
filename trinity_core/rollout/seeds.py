"""Sampling noise: a pure function of (run seed, key, position).

The run's id, folder, clock and process never enter it, nor does the batch a request happens to share: two runs of one
config and seed sample the same tokens from the same weights.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_core.types import Key

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def stable_hash(*words: Any, bits: int = 63) -> int:
    """A hash of plain values that is the same in every process: blake2b of their ``repr``, the top ``bits`` bits."""
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - bits)


def seed_of(run_seed: int, key: Key) -> int:
    """The seed of one generation: 63 bits of ``hash(run seed, key)``."""
    return stable_hash(
        int(run_seed),
        key.stream,
        key.slot,
        int(key.row),
        int(key.draw),
        int(key.attempt),
        int(key.attempt_try),
        int(key.call),
    )


def uniforms(seeds_B: NDArray[np.uint64], position: int | NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """One uniform number in [0, 1) per row: output ``position`` of the splitmix64 stream that starts at the row's seed.

    ``position`` counts the new tokens of the request, from 0; an array gives each row its own.
    """
    seeds_B = np.asarray(seeds_B, dtype=np.uint64)
    steps = np.asarray(position, dtype=np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the algorithm
        z = seeds_B + steps * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        z = z ^ (z >> np.uint64(31))
    uniform_B: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform_B


def draw_hash(slot: str, row: int, draw: int) -> str:
    """16 hex digits that name a draw of a task, the same in every run."""
    return f"{stable_hash('draw', slot, int(row), int(draw), bits=64):016x}"


def group_id(run_id: str, slot: str, row: int, draw: int) -> str:
    """``<run id>/<hash of (slot, row, draw)>``: the run's id keeps runs apart in a shared buffer and enters nothing else."""
    return f"{run_id}/{draw_hash(slot, row, draw)}"


def task_id(slot: str, row: int) -> str:
    """16 hex digits that name a task of a run."""
    return f"{stable_hash('task', slot, int(row), bits=64):016x}"
