"""Groups and states as bytes: msgpack, arrays as (dtype, shape, raw bytes), never pickle.

Layout: one byte of format version, one byte of kind (``G`` a group, ``S`` a state), CRC-32 of the body (4 bytes, little
endian), body. The round trip is exact: types of numbers and containers, NaN, array dtypes and shapes, the classes of
:mod:`trinity_core.types`. Everything else is refused by its path, because what cannot be read back must not be written.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Mapping
from typing import Any, cast

import msgpack
import numpy as np

from trinity_core import types
from trinity_core.errors import DataError

FORMAT = 1
"""Version of the layout. It grows when old bytes can no longer be read."""

_TUPLE, _ARRAY, _SCALAR, _INT, _RECORD, _SAME = 1, 2, 3, 4, 5, 6
_RECORDS: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        types.Task,
        types.Ok,
        types.Invalid,
        types.Fault,
        types.Sampling,
        types.Extra,
        types.Call,
        types.Experience,
        types.Attempt,
        types.Group,
        types.Result,
        types.Step,
    )
}
_FIELDS = {cls: tuple(field.name for field in dataclasses.fields(cls)) for cls in _RECORDS.values()}
_ext = msgpack.ExtType._make
"""``(code, body)`` as an extension, without the checks of its constructor: there are a dozen to an attempt."""
_EMPTY_TUPLE, _TASK_OF_GROUP = msgpack.ExtType(_TUPLE, msgpack.packb([])), msgpack.ExtType(_SAME, b"")
_GROUP_TASK = types.Task(id="", messages=())
"""Stands for "the task of the group" while one is read: eight attempts store their shared task once."""
_PLAIN = "None, bool, int, float, str, bytes, list, tuple, dict, numpy arrays and numbers"


def pack(group: types.Group) -> bytes:
    """``group`` as bytes. Raises :class:`~trinity_core.errors.DataError` with the path of what cannot be stored."""
    if not isinstance(group, types.Group):
        raise DataError(f"pack: a Group is stored, got {type(group).__name__}. For other data use pack_state")
    return _seal(b"G", group, f"group {group.id}", group.task)


def unpack(data: bytes) -> types.Group:
    """The group that :func:`pack` wrote. Its arrays are its own and writable.

    Raises :class:`~trinity_core.errors.DataError` for bytes that are damaged, or of another kind or format version.
    """
    return cast(types.Group, _open(b"G", data, "a stored group"))


def pack_state(state: Any) -> bytes:
    """A component's state as bytes: numbers (ints of any size), strings, lists, tuples, maps, numpy arrays, and the classes
    of :mod:`trinity_core.types`. Raises :class:`~trinity_core.errors.DataError` with the path of anything else."""
    return _seal(b"S", state, "state", None)


def unpack_state(data: bytes) -> Any:
    """What :func:`pack_state` wrote; errors as for :func:`unpack`."""
    return _open(b"S", data, "a stored state")


# --- writing ----------------------------------------------------------------------------------------------------------


def _seal(kind: bytes, value: Any, where: str, task: types.Task | None) -> bytes:
    try:
        try:
            body = _body(value, task, None)
        except UnicodeEncodeError:  # half characters are rare, and a packer that takes them needs half as long again
            body = _body(value, task, "surrogatepass")
    except (DataError, TypeError, ValueError, OverflowError, RecursionError) as error:
        try:
            _explain(value, where)
        except RecursionError:
            raise DataError(f"{where}: nested too deep, or it holds itself. Store plain data") from error
        raise DataError(f"{where}: cannot be stored ({error})") from error
    return bytes([FORMAT]) + kind + zlib.crc32(body).to_bytes(4, "little") + body


def _body(value: Any, task: types.Task | None, unicode_errors: str | None) -> bytes:
    writer = _Writer(task, unicode_errors)
    try:
        return writer.pack(value)
    finally:
        writer.packers.clear()  # they hold the writer: the garbage collector alone would free their buffers, some day


class _Writer:
    """msgpack with one extension per type it lacks. ``task`` is written once; attempts refer to it."""

    def __init__(self, task: types.Task | None, unicode_errors: str | None) -> None:
        self.task, self.unicode_errors = task, unicode_errors
        self.packers: list[msgpack.Packer] = []
        self.depth = 0

    def pack(self, value: Any) -> bytes:
        depth = self.depth
        if depth == len(self.packers):
            # One for each depth: a packer allocates a large buffer, and may not be entered again by what it calls.
            # strict_types: subclasses (numpy floats, enums, named tuples) come to `extend` instead of losing their type.
            packer = msgpack.Packer(default=self.extend, strict_types=True, unicode_errors=self.unicode_errors)
            self.packers.append(packer)
        self.depth = depth + 1
        body: bytes = self.packers[depth].pack(value)
        self.depth = depth  # not when it raises: that ends the writer
        return body

    def extend(self, value: Any) -> msgpack.ExtType:
        cls = type(value)
        if cls is np.ndarray and (name := _name(value.dtype)):
            return _ext((_ARRAY, self.pack([name, list(value.shape), value.tobytes()])))
        if cls is tuple:
            return _ext((_TUPLE, self.pack(list(value)))) if value else _EMPTY_TUPLE
        if cls in _FIELDS:
            return _ext((_RECORD, self.pack([cls.__name__, self.fields(value, cls)])))
        if isinstance(value, np.generic) and (name := _name(value.dtype)):
            return _ext((_SCALAR, self.pack([name, value.tobytes()])))
        if cls is int:
            return _ext((_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)))
        raise TypeError(f"{cls.__module__}.{cls.__qualname__} is not plain data")

    def fields(self, record: Any, cls: type) -> dict[str, Any]:
        values = vars(record)
        if tuple(values) != _FIELDS[cls]:  # something else was hung on it
            values = {name: getattr(record, name) for name in _FIELDS[cls]}
        if cls is types.Attempt and record.task is not None and record.task is self.task:
            return {**values, "task": _TASK_OF_GROUP}
        if cls is types.Ok:
            return {**values, "parts": dict(record.parts)}
        if cls is types.Task:
            values = {**values, "data": dict(record.data), "given": dict(record.given)}
            if not record.given:
                del values["given"]  # nothing given: the bytes are those of a task that cannot give
        return values


@functools.lru_cache(maxsize=256)
def _name(dtype: np.dtype[Any]) -> str | None:
    """``dtype.str`` if that says all of it: no objects, no structures, no foreign number formats."""
    return None if dtype.hasobject or dtype.kind == "V" else dtype.str


def _explain(value: Any, path: str) -> None:
    """Raise a DataError that names the first thing under ``path`` that cannot be stored."""
    cls = type(value)
    if isinstance(value, np.ndarray | np.generic):
        if not _name(value.dtype):
            raise DataError(f"{path}: an array of dtype {value.dtype} cannot be stored. Convert it to numbers")
    elif _RECORDS.get(cls.__name__) is cls:
        for name in _FIELDS[cls]:
            inner = getattr(value, name)
            _explain(dict(inner) if isinstance(inner, Mapping) else inner, f"{path}.{name}")
    elif cls is dict:
        for key, inner in value.items():
            _explain(key, f"{path}, key {key!r}")
            _explain(inner, f"{path}[{key!r}]")
    elif cls in (list, tuple):
        for i, inner in enumerate(value):
            _explain(inner, f"{path}[{i}]")
    elif cls not in (bool, int, float, str, bytes, type(None)):
        raise DataError(f"{path}: {cls.__module__}.{cls.__qualname__} is not plain data. Store {_PLAIN}")


# --- reading ----------------------------------------------------------------------------------------------------------


def _open(kind: bytes, data: bytes, what: str) -> Any:
    if len(data) < 6:
        raise DataError(f"{what}: {len(data)} bytes are too few. The file or row is damaged")
    if data[0] != FORMAT:
        raise DataError(
            f"{what}: format version {data[0]}, this version of trinity-core reads {FORMAT}. Use the version that wrote it"
        )
    if data[1:2] != kind:
        raise DataError(f"{what}: these bytes hold kind {data[1:2]!r}, not {kind!r}")
    body = data[6:]
    if zlib.crc32(body) != int.from_bytes(data[2:6], "little"):
        raise DataError(f"{what}: checksum differs. The file or row is damaged")
    try:
        return _read(body)
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise DataError(f"{what}: cannot be read ({error})") from error


def _extension(code: int, body: bytes) -> Any:
    if code == _ARRAY:
        dtype, shape, raw = _read(body)
        return _array(dtype, shape, raw)
    if code == _TUPLE:
        return tuple(_read(body))
    if code == _SAME:
        return _GROUP_TASK
    if code == _RECORD:
        return _sampling(body) if body.startswith(_SAMPLING) else _record(body)
    if code == _SCALAR:
        dtype, raw = _read(body)
        return _array(dtype, [], raw)[()]
    if code == _INT:
        return int.from_bytes(body, "little", signed=True)
    raise DataError(f"extension {code} is unknown")


def _record(body: bytes) -> Any:
    name, values = _read(body)
    record = _RECORDS[name](**values)
    if name == "Group":
        for attempt in record.attempts:
            if attempt.task is _GROUP_TASK:
                attempt.task = record.task
    return record


_SAMPLING = msgpack.packb(["Sampling", {}])[:-1]
_sampling = functools.lru_cache(maxsize=1024)(_record)
"""The few ways in which a run samples are read once: they are frozen, and every call has one."""


def _array(dtype: str, shape: list[int], raw: bytes) -> np.ndarray[Any, Any]:
    kind = np.dtype(dtype)
    if not kind.itemsize:  # text without a character takes the room of one
        kind = np.empty(0, kind).dtype
    size = kind.itemsize * math.prod(shape)
    if size != len(raw):
        raise DataError(f"an array of {dtype} {tuple(shape)} has {size} bytes, {len(raw)} are stored")
    return np.frombuffer(bytearray(raw), kind).reshape(shape)  # a bytearray: the array may be written to


_read = functools.partial(msgpack.unpackb, ext_hook=_extension, strict_map_key=False, unicode_errors="surrogatepass")
