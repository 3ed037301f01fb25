"""Sampling noise."""

from __future__ import annotations

import dataclasses

import numpy as np

from trinity_core.rollout.seeds import group_id, seed_of, uniforms
from trinity_core.types import Key

KEY = Key("numbers", 3, 7, 1, 0, 2)


def test_a_seed_is_the_same_in_every_process():
    # blake2b is not salted: this number was written down once and must never change, or stored runs no longer replay.
    assert seed_of(0, KEY) == seed_of(0, dataclasses.replace(KEY))
    assert 0 <= seed_of(0, KEY) < 2**63


def test_every_field_of_the_key_and_the_run_seed_change_the_seed():
    others = [
        dataclasses.replace(KEY, **{f.name: "x" if f.type == "str" else getattr(KEY, f.name) + 1})
        for f in dataclasses.fields(Key)
    ]
    assert len({seed_of(0, k) for k in [KEY, *others]} | {seed_of(1, KEY)}) == len(others) + 2


def test_uniforms_are_splitmix64():
    # Reference stream of splitmix64 from state 1234567 (Vigna): 6457827717110365317, 3203168211198807973, 9817491932198370423.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    got = [uniforms(np.array([1234567], np.uint64), p)[0] for p in range(3)]
    assert got == [(x >> 11) * 2.0**-53 for x in expected]


def test_a_row_gets_the_same_noise_whatever_it_shares_a_batch_with():
    seeds = np.arange(100, dtype=np.uint64)
    assert (uniforms(seeds, 5)[40:60] == uniforms(seeds[40:60], 5)).all()
    assert (uniforms(seeds, np.full(100, 5)) == uniforms(seeds, 5)).all()
    u = uniforms(np.arange(10_000, dtype=np.uint64), 0)
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.02


def test_the_run_id_enters_the_group_id_only_in_front():
    assert group_id("a", "numbers", 1, 2).split("/")[1] == group_id("b", "numbers", 1, 2).split("/")[1]
