"""Rules of every component, whatever its kind."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from trinity_core import describe
from trinity_core.kinds import KINDS
from trinity_core.testing.rules import NotApplicable, require
from trinity_core.testing.subject import Subject, class_of, close, composed, instance, plain, run_for

SLOT_KEYS = frozenset(key for kind in KINDS.values() for key in kind.slot_keys) | {"name"}
SECRET = re.compile(r"(^|_)(api_key|token|password|passwd|secret)$")
"""Field names that hold a secret. ``api_key_env`` names a variable and is right; ``max_tokens`` is none."""

# --- the class --------------------------------------------------------------------------------------------------------


def name_resolves(subject: Subject, tmp: Path) -> None:
    """The name leads to a class that subclasses its kind's protocol."""
    from trinity_core import protocols

    protocol = getattr(protocols, KINDS[subject.kind].protocol)
    cls = class_of(subject)
    require(
        isinstance(cls, type) and issubclass(cls, protocol),
        f"{subject.name} is not a subclass of protocols.{protocol.__name__}",
    )


def frozen_dataclass(subject: Subject, tmp: Path) -> None:
    cls = class_of(subject)
    require(
        dataclasses.is_dataclass(cls), f"{cls.__name__} is not a dataclass. Decorate it with @dataclass(frozen=True)"
    )
    frozen = cls.__dict__.get("__dataclass_params__") and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    require(frozen, f"{cls.__name__} is not frozen itself. Decorate it with @dataclass(frozen=True)")


def class_is_documented(subject: Subject, tmp: Path) -> None:
    cls = class_of(subject)
    own = cls.__dict__.get("__doc__")
    require(
        own and describe.first_paragraph(cls),
        f"{cls.__name__} has no docstring of its own: what it is, formula, paper, units",
    )


def fields_are_documented(subject: Subject, tmp: Path) -> None:
    cls = class_of(subject)
    bare = [doc.name for doc in describe.field_docs(cls).values() if not doc.doc]
    require(not bare, f"{cls.__name__}: no string under {', '.join(bare)}. Say what it is, its unit and range")


def annotations_resolve(subject: Subject, tmp: Path) -> None:
    cls = class_of(subject)
    why = describe.unresolved(cls)
    require(why is None, f"{cls.__name__}: {why}. Import what a field's annotation names outside TYPE_CHECKING")


def no_field_holds_a_secret(subject: Subject, tmp: Path) -> None:
    bad = [field.name for field in dataclasses.fields(class_of(subject)) if SECRET.search(field.name)]
    require(
        not bad,
        f"{', '.join(bad)}: config is written to disk. Name the environment variable instead ({(bad or ['x'])[0]}_env)",
    )


def no_field_is_a_slot_key(subject: Subject, tmp: Path) -> None:
    bad = sorted({field.name for field in dataclasses.fields(class_of(subject))} & SLOT_KEYS)
    require(not bad, f"{', '.join(bad)}: this key of a slot belongs to the kernel. Give the field another name")


# --- the option -------------------------------------------------------------------------------------------------------


def option_equals_the_defaults(subject: Subject, tmp: Path) -> None:
    """The option of the same name says ``name`` and every field, at the dataclass's default."""
    from omegaconf import OmegaConf

    _, node, _ = composed(subject)
    file = f"conf/{subject.kind}/{subject.name}.yaml"
    option = {
        key: value
        for key, value in cast(dict[str, Any], OmegaConf.to_container(node, resolve=False)).items()
        if key not in KINDS[subject.kind].slot_keys
    }
    require(option.pop("name", None) == subject.name, f"{file} must say 'name: {subject.name}'")
    fields = {field.name: field for field in dataclasses.fields(class_of(subject)) if field.init}
    require(
        option.keys() == fields.keys(),
        f"{file} and the dataclass differ in {', '.join(sorted(option.keys() ^ fields.keys()))}",
    )
    drift = [
        f"{key}: {option[key]!r} in the file, {_default(field)!r} in the class"
        for key, field in fields.items()
        if option[key] != _default(field)
    ]
    require(not drift, f"{file}: {'; '.join(drift)}")


def composes_and_checks(subject: Subject, tmp: Path) -> None:
    """A run that selects it passes ``check``, and ``check`` builds what the class builds."""
    from omegaconf import OmegaConf

    from trinity_core.config.check import check

    config, _, path = composed(subject)
    made = instance(subject, tmp)
    for field in dataclasses.fields(made):
        if describe.default_of(field) == "required":
            OmegaConf.update(config, f"{path}.{field.name}", plain(getattr(made, field.name)), force_add=True)
    part = check(config).parts[path]
    require(type(part.component) is class_of(subject), f"check built {type(part.component).__name__}")
    require(part.kind == subject.kind and part.name == subject.name, f"check calls it {part.kind}/{part.name}")


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return plain(field.default)
    return "???" if field.default_factory is dataclasses.MISSING else plain(field.default_factory())


# --- the life ---------------------------------------------------------------------------------------------------------


def pickles(subject: Subject, tmp: Path) -> None:
    """Components cross to another process as config."""
    made = instance(subject, tmp)
    require(pickle.loads(pickle.dumps(made)) == made, "what comes back from pickle is not equal")


def opens_and_closes_twice(subject: Subject, tmp: Path) -> None:
    """Two lives of one config share nothing; closing twice is fine; the config stays as it was."""
    if subject.kind == "command":
        raise NotApplicable("a command is not opened by a run")
    made = instance(subject, tmp)
    before = copy.deepcopy(plain(made))
    run = run_for(subject, made, tmp)
    first, second = made.open(run), made.open(run_for(subject, made, tmp))
    stateful = first is not made
    require(not stateful or first is not second, "open() gives the same live object to two runs")
    for live in (first, second):
        close(live)
        if subject.kind != "environment":  # the one kind whose close is called exactly once
            close(live)
    require(plain(made) == before, "the config changed while it was open")


def state_round_trips(subject: Subject, tmp: Path) -> None:
    """``load_state_dict(state_dict())`` on a fresh life gives the same state, in plain data."""
    if subject.kind == "command":
        raise NotApplicable("a command is not opened by a run")
    made = instance(subject, tmp)
    first = made.open(run_for(subject, made, tmp))
    try:
        if not hasattr(first, "state_dict"):
            raise NotApplicable("it keeps no state")
        require(hasattr(first, "load_state_dict"), "it has state_dict but no load_state_dict")
        state = first.state_dict()
        _require_plain(state, "state")
        second = made.open(run_for(subject, made, tmp))
        try:
            second.load_state_dict(copy.deepcopy(state))
            require(_same(second.state_dict(), state), "the state after loading differs from the state that was saved")
        finally:
            close(second)
    finally:
        close(first)


def _require_plain(value: Any, path: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            require(isinstance(key, str), f"{path}: the key {key!r} is not a string")
            _require_plain(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for n, item in enumerate(value):
            _require_plain(item, f"{path}[{n}]")
    else:
        fits = value is None or isinstance(value, (bool, int, float, str, bytes, np.ndarray, np.generic))
        require(
            fits,
            f"{path}: a {type(value).__name__} cannot be saved; states are numbers, strings, lists, maps and arrays",
        )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind in "fc"))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))
    return bool(a == b)


RULES = {
    "its name resolves to its kind": name_resolves,
    "is a frozen dataclass": frozen_dataclass,
    "has a docstring of its own": class_is_documented,
    "every field is documented": fields_are_documented,
    "annotations resolve at run time": annotations_resolve,
    "no field holds a secret": no_field_holds_a_secret,
    "no field is a slot key": no_field_is_a_slot_key,
    "option equals the defaults": option_equals_the_defaults,
    "composes and checks": composes_and_checks,
    "pickles": pickles,
    "opens and closes twice": opens_and_closes_twice,
    "state round-trips": state_round_trips,
}
