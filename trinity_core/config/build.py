"""Plain values to a frozen dataclass; every refusal has the full path, the nearest spelling and the options.

Values are checked field by field with pydantic; unknown keys are refused at every depth. OmegaConf's own structured
configs are not used: they know no ``Literal``, tuple, set or nested frozen dataclass.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from trinity_core.errors import ConfigError, PluginLoadError
from trinity_core.plugins import did_you_mean

T = TypeVar("T")
SEQUENCES = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Set)


def build(cls: type[T], values: Mapping[str, Any], path: str, what: str, *, also: Iterable[str] = ()) -> T:
    """An instance of ``cls`` from plain ``values`` that stand at ``path``. ``what`` is how messages call it; ``also`` are
    keys of the same node that are not for ``cls`` (they are named among the options)."""
    hints = _hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise unknown(join(path, str(key)), what, str(key), [*fields, *also])
    made = {}
    for name, field in fields.items():
        if name in values:
            made[name] = _value(hints[name], values[name], join(path, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{join(path, name)}: a value is needed: {join(path, name)}={_say(hints[name])}")
    try:
        return cls(**made)
    except Exception as error:
        raise ConfigError(f"{path or what}: {what} refuses these values: {error}") from error


def unknown(where: str, what: str, key: str, known: Iterable[str]) -> ConfigError:
    """The refusal of a key that nobody has."""
    options = list(known)
    return ConfigError(
        f"{where}: {what} has no such option.{did_you_mean(key, options)} Options: {', '.join(options) or 'none'}"
    )


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError) as error:
        raise PluginLoadError(
            f"{cls.__module__}:{cls.__qualname__}: the annotation of a field cannot be resolved: {error}. Import what fields name outside TYPE_CHECKING"
        ) from error


def _value(hint: Any, value: Any, path: str) -> Any:
    """``value`` as ``hint``; dataclasses inside are built by us, so that their unknown keys are refused too."""
    if isinstance(value, Mapping) and (candidates := _dataclasses(hint)):
        best = max(candidates, key=lambda cls: len(value.keys() & {field.name for field in dataclasses.fields(cls)}))
        return build(best, value, path, path or best.__name__)
    if _holds_dataclasses(hint):
        arguments = [argument for argument in get_args(hint) if argument is not Ellipsis]
        if isinstance(value, Mapping):
            return {key: _value(arguments[-1], item, join(path, str(key))) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            origin = get_origin(hint)
            items = [_value(arguments[0], item, join(path, str(index))) for index, item in enumerate(value)]
            return items if origin in (list, collections.abc.Sequence) else origin(items)
    if _confused(hint, value):
        raise _wrong(hint, value, path)
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        inner = ".".join(str(step) for step in first["loc"] if isinstance(step, int))
        raise _wrong(hint, value, path, join(path, inner) if inner else path, first) from None


def _wrong(hint: Any, value: Any, path: str, where: str = "", first: Any = None) -> ConfigError:
    choices = [choice for part in _members(hint) if get_origin(part) is Literal for choice in get_args(part)]
    mean = did_you_mean(str(value), [str(choice) for choice in choices])
    dull = ("literal_error", "missing", "dataclass_type")
    detail = f" ({first['msg']})" if first and first["type"] not in dull and "valid" not in first["msg"] else ""
    return ConfigError(f"{where or path}: expected {_say(hint)}, got {value!r}{detail}.{mean}")


def _confused(hint: Any, value: Any) -> bool:
    """pydantic reads ``true`` as 1 and 1 as ``true``; we do not."""
    members = _members(hint)
    if isinstance(value, bool):
        return not any(
            part in (bool, Any) or (get_origin(part) is Literal and any(value is c for c in get_args(part)))
            for part in members
        )
    return (
        bool in members
        and isinstance(value, (int, float, str))
        and not any(part in (int, float, str, Any) for part in members)
    )


def _members(hint: Any) -> list[Any]:
    """The alternatives of a union; ``Annotated`` looked through."""
    if get_origin(hint) is typing.Annotated:
        return _members(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return [member for part in get_args(hint) for member in _members(part)]
    return [hint]


def _dataclasses(hint: Any) -> list[Any]:
    return [part for part in _members(hint) if isinstance(part, type) and dataclasses.is_dataclass(part)]


def _holds_dataclasses(hint: Any) -> bool:
    origin = get_origin(hint)
    is_map = isinstance(origin, type) and issubclass(origin, Mapping)
    return (origin in SEQUENCES or is_map) and any(_dataclasses(argument) for argument in get_args(hint))


def _say(hint: Any) -> str:
    """A type in a reader's words."""
    names = []
    for part in _members(hint):
        if get_origin(part) is Literal:
            names.append("one of " + ", ".join(str(choice) for choice in get_args(part)))
        elif part is type(None):
            names.append("null")
        elif get_origin(part) is not None:
            inner = [argument for argument in get_args(part) if argument is not Ellipsis]
            name = {"tuple": "list", "frozenset": "list", "Sequence": "list", "Mapping": "map", "dict": "map"}.get(
                get_origin(part).__name__, get_origin(part).__name__
            )
            fixed = f"{len(inner)}: " if get_origin(part) is tuple and Ellipsis not in get_args(part) else ""
            names.append(f"{name} of {fixed}{', '.join(_say(argument) for argument in inner)}")
        elif isinstance(part, type) and dataclasses.is_dataclass(part):
            names.append(f"{part.__name__}({', '.join(field.name for field in dataclasses.fields(part))})")
        else:
            names.append(
                {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}.get(
                    getattr(part, "__name__", ""), getattr(part, "__name__", str(part))
                )
            )
    return " or ".join(dict.fromkeys(names))


@lru_cache(maxsize=4096)
def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        try:
            return TypeAdapter(hint, config=ConfigDict(extra="forbid"))
        except PydanticUserError as error:
            if isinstance(error, PydanticSchemaGenerationError):
                raise
            return TypeAdapter(hint)  # a bare dataclass or model brings its own config
    except PydanticSchemaGenerationError as error:
        raise PluginLoadError(
            f"a component has a field of type {hint}, which cannot stand in config. Use numbers, text, lists, maps or frozen dataclasses"
        ) from error
