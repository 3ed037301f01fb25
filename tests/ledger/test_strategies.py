"""First in, first out."""

from __future__ import annotations

from trinity_core.builtins.strategies.fifo import Fifo
from trinity_core.types import Entry


def entry(name: str, draw: int, version: int | None, sequence: int = 0) -> Entry:
    return Entry(name, draw, version, 0, None, "kit", sequence)


def test_draw_order_is_kept_whatever_arrived_first():
    index = [entry("c", 2, 0, 1), entry("a", 0, 5, 3), entry("b", 1, 1, 2)]
    assert Fifo()(index, 2) == ["a", "b"]


def test_groups_of_one_draw_keep_their_order_of_arrival():
    assert Fifo()([entry("b", 0, 0, 7), entry("a", 0, 0, 3)], 9) == ["a", "b"]


def test_asynchronous_runs_can_take_what_is_oldest_by_version():
    index = [entry("a", 0, 3), entry("b", 1, 1), entry("c", 2, 1), entry("given", 3, None)]
    assert Fifo(order="version")(index, 9) == ["b", "c", "a", "given"]
    assert Fifo(order="version")(index, 1) == ["b"]


def test_fewer_than_asked_for_is_all_there_is():
    assert Fifo()([entry("a", 0, 0)], 4) == ["a"]
    assert Fifo()([], 4) == []
