"""One component under test: its class, an instance, a run to open it in, and the words that select it."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import inspect
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity_core import describe
from trinity_core.kinds import KINDS
from trinity_core.testing import light
from trinity_core.testing.rules import NotApplicable, require


@dataclass(frozen=True)
class Subject:
    """One component under test."""

    kind: str
    name: str
    """As a config says it: a registered name, or ``module:Class``."""
    plugin: str | None = None


def class_of(subject: Subject) -> type:
    from trinity_core.plugins import resolve

    return resolve(subject.kind, subject.name)


def instance(subject: Subject, tmp: Path) -> Any:
    """``cls.example(tmp)`` where the class has one, else ``cls()``."""
    cls = class_of(subject)
    if hasattr(cls, "example"):
        return cls.example(tmp)
    required = [field.name for field in dataclasses.fields(cls) if describe.default_of(field) == "required"]
    require(
        not required,
        f"{cls.__name__} has required fields ({', '.join(required)}), so the kit cannot make one. Add:\n"
        "    @classmethod\n    def example(cls, tmp: Path): return cls(...)",
    )
    return cls()


def contract(kind: str) -> Any:
    """The contract module of a kind, or ``None``."""
    module = f"trinity_core.testing.contracts.{kind}"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None


def run_for(subject: Subject, component: Any, tmp: Path) -> Any:
    """A run to open the component in. A contract with needs of its own has ``run_for(component, tmp)``."""
    make = getattr(contract(subject.kind), "run_for", None)
    if make is not None and make is not run_for:
        return make(component, tmp)
    from trinity_core.testing.fakes import FakeRun

    return FakeRun(dir=Path(tempfile.mkdtemp(dir=tmp)))


def close(live: Any) -> None:
    """Close what ``open`` gave, plain or async; live objects without ``close`` hold nothing."""
    answer = live.close() if hasattr(live, "close") else None
    if inspect.isawaitable(answer):

        async def wait() -> None:
            await answer

        asyncio.run(wait())


def words_of(subject: Subject) -> list[str]:
    """What a user types to select the component, and what the run then needs beside it."""
    kind = KINDS[subject.kind]
    choice = f"{kind.name}=[{subject.name}]" if kind.plural else f"{kind.name}={subject.name}"
    beside = getattr(contract(subject.kind), "BESIDE", ())
    return [
        choice,
        *(beside(class_of(subject)) if callable(beside) else beside),
        *getattr(class_of(subject), "beside", ()),
        *light.words(subject.kind),
    ]


def composed(subject: Subject) -> tuple[Any, Any, str]:
    """(whole config, the component's node, its path)."""
    from trinity_core.config.compose import compose

    if subject.kind == "command":
        raise NotApplicable("a command is reached from the command line, not from config")
    config = compose(words_of(subject))
    kind = KINDS[subject.kind]
    if not kind.plural:
        return config, config[kind.name], kind.name
    slot = next((slot for slot, node in config[kind.plural].items() if node and node.get("name") == subject.name), None)
    require(
        slot is not None,
        f"conf/{kind.name}/{subject.name}.yaml: its first line must be '# @package {kind.plural}.<slot>'",
    )
    return config, config[kind.plural][slot], f"{kind.plural}.{slot}"


def plain(value: Any) -> Any:
    """A field's value as YAML would give it back."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


@contextmanager
def opened(kind: str, component: Any, tmp: Path) -> Iterator[Any]:
    """One life of a component, for a rule."""
    live = component.open(run_for(Subject(kind, ""), component, tmp))
    try:
        yield live
    finally:
        close(live)
