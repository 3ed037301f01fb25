"""Stored bytes: what goes in comes out exactly, and nothing else goes in."""

from __future__ import annotations

import datetime
import enum
import hashlib
import zlib
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trinity_core import codec
from trinity_core.errors import DataError
from trinity_core.testing.contracts._support import rich_group, same, small_group
from trinity_core.types import Attempt, Call, Experience, Extra, Fault, Group, Invalid, Ok, Sampling, Task

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)
arrays = hnp.arrays(
    hnp.integer_dtypes() | hnp.unsigned_integer_dtypes() | hnp.floating_dtypes() | hnp.boolean_dtypes(),
    hnp.array_shapes(min_dims=0, min_side=0),
)


@given(plain)
@settings(max_examples=150, deadline=None)
def test_plain_data_comes_back_in_type_and_value(value):
    assert same(codec.unpack_state(codec.pack_state(value)), value)


@given(arrays)
@settings(max_examples=100, deadline=None)
def test_arrays_come_back_bit_by_bit_and_writable(array):
    back = codec.unpack_state(codec.pack_state([array, array.T]))
    assert same(back, [array, np.ascontiguousarray(array.T).reshape(array.T.shape)])
    assert back[0].flags.writeable


@pytest.mark.parametrize("text", [np.str_(""), np.bytes_(b""), np.str_("naïve"), np.array(["", "a"])])
def test_texts_of_numpy_come_back_empty_ones_too(text):
    assert same(codec.unpack_state(codec.pack_state(text)), text)


def test_everything_a_group_can_hold_comes_back():
    group = rich_group("r")
    back = codec.unpack(codec.pack(group))
    assert same(back, group)
    assert all(attempt.task is back.task for attempt in back.attempts)


def test_equal_groups_have_equal_bytes():
    assert codec.pack(rich_group("r")) == codec.pack(codec.unpack(codec.pack(rich_group("r"))))


def test_the_bytes_are_those_that_ledgers_hold_already():
    """A layout that changes is a new ``FORMAT``: what was stored must stay readable, and equal groups equal."""
    task = Task(
        "t", ({"role": "user", "content": "naïve ☃"},), "1", {"pair": (1, ()), "big": 2**90, "n": np.float32(0.5)}
    )
    call = Call(1, 2, 0, [(3, 1)], Sampling(0.7, stop=("\n",)), reward=0.5)
    sequence = Experience(np.array([7, 8], "<i4"), np.array([0, 1], "|u1"), np.array([np.nan, -0.5], "<f4"), [call])
    attempts = [Attempt([sequence], score=Ok(1, {"x": 0.5}), task=task), Attempt(role="greedy", score=Fault("late"))]
    data = codec.pack(Group("r/1", task, attempts, "kit", 2, 3, [(0, 1)]))
    assert (len(data), hashlib.sha256(data).hexdigest()) == (
        748,
        "a525df87d933ddaeeb6cb50a6d331d078f5f1e26b6fb348d13dea9fcb0f8ea15",
    )


def test_half_characters_and_what_is_hung_on_a_record_change_no_other_byte():
    group = small_group("r", 0)
    before = codec.pack(group)
    group.attempts[0].note = "not a field"
    assert codec.pack(group) == before
    group.attempts[0].text = "\ud83d"
    assert codec.unpack(codec.pack(group)).attempts[0].text == "\ud83d"


def test_an_attempt_keeps_a_task_of_its_own():
    group = small_group("r", 0)
    group.attempts[0].task = Task("other", ())
    group.attempts[0].info = {"task": group.task}
    back = codec.unpack(codec.pack(group)).attempts[0]
    assert back.task.id == "other"
    assert back.info["task"].id == "task-0"


def test_attempts_travel_as_states_too():
    attempt = rich_group("r").attempts[1]
    back = codec.unpack_state(codec.pack_state({"attempt": attempt, "score": Invalid("x")}))
    assert same(back, {"attempt": attempt, "score": Invalid("x")})


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (object(), "builtins.object is not plain data"),
        ({1, 2}, "builtins.set is not plain data"),
        (datetime.date(2020, 1, 1), "datetime.date is not plain data"),
        (Colour.RED, "Colour is not plain data"),
        (np.array([object()]), "an array of dtype object cannot be stored"),
        (np.zeros(2, [("a", "f4")]), "cannot be stored"),
        (lambda: 0, "builtins.function is not plain data"),
    ],
)
def test_what_cannot_be_read_back_is_refused_by_its_path(bad, said):
    group = small_group("r", 3)
    group.attempts[0].info = {"fine": 1, "deep": [0, {"here": bad}]}
    with pytest.raises(DataError, match=r"group r/000003\.attempts\[0\]\.info\['deep'\]\[1\]\['here'\]: .*") as caught:
        codec.pack(group)
    assert said in str(caught.value)


def test_task_data_is_named_too():
    group = small_group("r", 0)
    with pytest.raises(DataError, match=r"group r/000000\.task\.data\['when'\]: datetime"):
        codec.pack(replace(group, task=Task("t", (), data={"when": datetime.datetime(2020, 1, 1)})))


def test_data_that_holds_itself_is_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(DataError, match="nested too deep, or it holds itself"):
        codec.pack_state(loop)


def test_every_damaged_byte_is_noticed():
    data = codec.pack(small_group("r", 0))
    for i in range(len(data)):
        with pytest.raises(DataError):
            codec.unpack(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
        with pytest.raises(DataError):
            codec.unpack(data[:i])


@pytest.mark.parametrize("array", [["O", [1], bytes(8)], ["<i4", [2], bytes(4)], ["<i4", [-1, -1], bytes(4)]])
def test_no_array_is_made_of_bytes_that_are_not_its_numbers(array):
    body = msgpack.packb(msgpack.ExtType(2, msgpack.packb(array)))
    with pytest.raises(DataError, match="cannot be read"):
        codec.unpack_state(bytes([codec.FORMAT]) + b"S" + zlib.crc32(body).to_bytes(4, "little") + body)


def test_bytes_of_another_format_or_kind_are_refused():
    group, state = codec.pack(small_group("r", 0)), codec.pack_state({})
    with pytest.raises(DataError, match="format version 9"):
        codec.unpack(bytes([9]) + group[1:])
    with pytest.raises(DataError, match="these bytes hold kind"):
        codec.unpack(state)
    with pytest.raises(DataError, match="a Group is stored"):
        codec.pack({})


def test_an_extra_must_fit_its_axis_before_it_is_stored():
    tokens = np.arange(3, dtype=np.int32)
    with pytest.raises(DataError, match="2 entries on axis 'token' of size 3"):
        Experience(tokens, np.zeros(3, np.uint8), np.zeros(3, np.float32), extras={"x": Extra(np.zeros(2), "token")})
