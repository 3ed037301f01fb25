"""What a component says of itself: its first paragraph, and the string under each of its fields.

Strings under fields do not exist at run time, so they are read from the source with :mod:`ast`. The command line, the
generated reference pages and the conformance kit all read them here.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import dataclass
from typing import Any, get_type_hints


@dataclass(frozen=True)
class FieldDoc:
    """One option of a component."""

    name: str
    type: str
    """As written in the source."""
    default: str
    """Its ``repr``, or "required"."""
    doc: str
    """The string under the field, on one line; "" where there is none."""


def first_paragraph(thing: Any) -> str:
    """The first paragraph of a docstring, on one line; "" where there is none, or only what ``dataclass`` generates."""
    doc = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    if doc.startswith(f"{getattr(thing, '__name__', '')}("):
        return ""
    return " ".join(doc.split("\n\n")[0].split())


def field_docs(cls: type) -> dict[str, FieldDoc]:
    """Every option of a dataclass in order, with fields it inherits."""
    written: dict[str, tuple[str, str]] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            written |= _written(base)
    found = {}
    for field in dataclasses.fields(cls):
        if field.init:
            annotation, doc = written.get(field.name, (str(field.type), ""))
            found[field.name] = FieldDoc(field.name, annotation, default_of(field), doc)
    return found


def default_of(field: dataclasses.Field[Any]) -> str:
    """The default of a field as its ``repr``, or "required"."""
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return "required"


def unresolved(cls: type) -> str | None:
    """Why the annotations of ``cls`` do not resolve at run time, or ``None``."""
    try:
        get_type_hints(cls)
    except (NameError, TypeError, AttributeError) as error:
        return str(error)
    return None


def _written(cls: type) -> dict[str, tuple[str, str]]:
    """(annotation, string under it) of each annotated name in the body of ``cls``."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}  # made at run time: it has no source, and so no strings
    body = ast.parse(source).body[0]
    if not isinstance(body, ast.ClassDef):
        return {}
    found = {}
    for line, after in zip(body.body, [*body.body[1:], None]):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            doc = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            found[line.target.id] = (
                ast.unparse(line.annotation),
                " ".join(doc.split()) if isinstance(doc, str) else "",
            )
    return found
