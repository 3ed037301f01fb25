"""Stored bytes: what goes in comes out exactly, and nothing else goes in."""

from __future__ import annotations

import datetime
import enum
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trinity_core import codec
from trinity_core.errors import DataError
from trinity_core.testing.contracts._support import rich_group, same, small_group
from trinity_core.types import Experience, Extra, Invalid, Task

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


def test_everything_a_group_can_hold_comes_back():
    group = rich_group("r")
    back = codec.unpack(codec.pack(group))
    assert same(back, group)
    assert all(attempt.task is back.task for attempt in back.attempts)


def test_equal_groups_have_equal_bytes():
    assert codec.pack(rich_group("r")) == codec.pack(codec.unpack(codec.pack(rich_group("r"))))


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
