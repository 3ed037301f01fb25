"""Groups and states as bytes: msgpack, arrays as (dtype, shape, raw bytes), never pickle.

Layout: one byte of format version, one byte of kind (``G`` a group, ``S`` a state), CRC-32 of the body (4 bytes, little
endian), body. The round trip is exact: types of numbers and containers, NaN, array dtypes and shapes, the classes of
:mod:`trinity_core.types`. Everything else is refused by its path, because what cannot be read back must not be written.
"""

from __future__ import annotations

import dataclasses
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
        body = _Writer(task).pack(value)
    except (DataError, TypeError, ValueError, OverflowError, RecursionError) as error:
        try:
            _explain(value, where)
        except RecursionError:
            raise DataError(f"{where}: nested too deep, or it holds itself. Store plain data") from error
        raise DataError(f"{where}: cannot be stored ({error})") from error
    return bytes([FORMAT]) + kind + zlib.crc32(body).to_bytes(4, "little") + body


class _Writer:
    """msgpack with one extension per type it lacks. ``task`` is written once; attempts refer to it."""

    def __init__(self, task: types.Task | None) -> None:
        self.task = task
        self._packers: list[msgpack.Packer] = []
        self._depth = 0

    def pack(self, value: Any) -> bytes:
        if self._depth == len(self._packers):
            # One for each depth: a packer allocates a large buffer, and may not be entered again by what it calls.
            # strict_types: subclasses (numpy floats, enums, named tuples) come to `extend` instead of losing their type.
            packer = msgpack.Packer(default=self.extend, strict_types=True, unicode_errors="surrogatepass")
            self._packers.append(packer)
        self._depth += 1
        try:
            return cast(bytes, self._packers[self._depth - 1].pack(value))
        finally:
            self._depth -= 1

    def extend(self, value: Any) -> msgpack.ExtType:
        cls = type(value)
        if cls is np.ndarray and _storable(value.dtype):
            array = [value.dtype.str, list(value.shape), value.tobytes()]
            return msgpack.ExtType(_ARRAY, self.pack(array))
        if cls is tuple:
            return msgpack.ExtType(_TUPLE, self.pack(list(value)))
        if _RECORDS.get(cls.__name__) is cls:
            return msgpack.ExtType(_RECORD, self.pack([cls.__name__, self.fields(value)]))
        if isinstance(value, np.generic) and _storable(value.dtype):
            return msgpack.ExtType(_SCALAR, self.pack([value.dtype.str, value.tobytes()]))
        if cls is int:
            return msgpack.ExtType(_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        raise TypeError(f"{cls.__module__}.{cls.__qualname__} is not plain data")

    def fields(self, record: Any) -> dict[str, Any]:
        values = {name: getattr(record, name) for name in _FIELDS[type(record)]}
        if isinstance(record, types.Group):
            values["task"] = msgpack.ExtType(_RECORD, self.pack(["Task", self.fields(record.task)]))
        elif isinstance(record, types.Attempt) and record.task is not None and record.task is self.task:
            values["task"] = msgpack.ExtType(_SAME, b"")
        elif isinstance(record, types.Task):
            values |= {"data": dict(record.data), "given": dict(record.given)}
            if not record.given:
                del values["given"]  # nothing given: the bytes are those of a task that cannot give
        elif isinstance(record, types.Ok):
            values["parts"] = dict(record.parts)
        return values


def _storable(dtype: np.dtype[Any]) -> bool:
    """Whether ``dtype.str`` says all of it: no objects, no structures, no foreign number formats."""
    return not dtype.hasobject and dtype.kind != "V"


def _explain(value: Any, path: str) -> None:
    """Raise a DataError that names the first thing under ``path`` that cannot be stored."""
    cls = type(value)
    if isinstance(value, np.ndarray | np.generic):
        if not _storable(value.dtype):
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


def _read(body: bytes) -> Any:
    return msgpack.unpackb(body, ext_hook=_extension, strict_map_key=False, unicode_errors="surrogatepass")


def _extension(code: int, body: bytes) -> Any:
    if code == _ARRAY:
        dtype, shape, raw = _read(body)
        return _array(dtype, tuple(shape), raw)
    if code == _TUPLE:
        return tuple(_read(body))
    if code == _SAME:
        return _GROUP_TASK
    if code == _RECORD:
        name, values = _read(body)
        record = _RECORDS[name](**values)
        if isinstance(record, types.Group):
            for attempt in record.attempts:
                if attempt.task is _GROUP_TASK:
                    attempt.task = record.task
        return record
    if code == _SCALAR:
        dtype, raw = _read(body)
        return _array(dtype, (), raw)[()]
    if code == _INT:
        return int.from_bytes(body, "little", signed=True)
    raise DataError(f"extension {code} is unknown")


def _array(dtype: str, shape: tuple[int, ...], raw: bytes) -> np.ndarray[Any, Any]:
    array = np.empty(shape, np.dtype(dtype))
    if array.nbytes != len(raw) or math.prod(shape) != array.size:
        raise DataError(f"an array of {dtype} {shape} has {array.nbytes} bytes, {len(raw)} are stored")
    if raw:
        array[...] = np.frombuffer(raw, array.dtype).reshape(shape)
    return array
