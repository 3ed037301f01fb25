"""The generated reference pages: ``python scripts/docs.py`` writes ``docs/hooks.md`` and ``docs/components.md``; a test compares."""

from __future__ import annotations

import inspect
from pathlib import Path

from trinity_core import describe, hookspecs
from trinity_core.kinds import CONFIG_KINDS, KINDS, Kind
from trinity_core.plugins import catalog, resolve

ROOT = Path(__file__).parent.parent
HEADER = "<!-- Written by `make docs` from the code. Change the docstring there, not this file. -->\n"
BUILTINS = "builtins"


def signature(name: str) -> str:
    """A hook as a plugin writes it."""
    shown = inspect.signature(getattr(hookspecs, name))
    return f"def {name}{shown}".replace("'", "")


def hooks() -> str:
    """Every hook: the table of kinds, then signature and docstring of each."""
    registering = {kind.hook: kind for kind in KINDS.values()}
    names = [name for name, hook in vars(hookspecs).items() if name.startswith("trinity_") and inspect.isfunction(hook)]
    lines = [
        "# Hooks",
        HEADER,
        inspect.cleandoc(hookspecs.__doc__ or ""),
        "",
        "Implement a hook in the module that your entry point names, and mark it:",
        "",
        "```python",
        "from trinity_core import hookimpl",
        "",
        "",
        "@hookimpl",
        "def trinity_rewards():",
        '    return {"mine": "my_package.mine:Mine"}',
        "```",
        "",
        "## Kinds",
        "",
        "| kind | a run has | hook | protocol | a component … | keys of its slot |",
        "|---|---|---|---|---|---|",
        *(_row(kind) for kind in KINDS.values()),
        "",
        "Node of a kind that a run has one of: its name. Of a kind that it may have many of: the plural, a map from slot to component.",
        "",
    ]
    for title, group in (
        ("Registering hooks", [n for n in names if n in registering]),
        ("Other hooks", [n for n in names if n not in registering]),
    ):
        lines += [f"## {title}", ""]
        for name in group:
            lines += [
                f"### `{name}`",
                "",
                "```python",
                signature(name),
                "```",
                "",
                _plain(inspect.getdoc(getattr(hookspecs, name)) or ""),
                "",
            ]
    return "\n".join(lines).rstrip() + "\n"


def _row(kind: Kind) -> str:
    if kind.name not in CONFIG_KINDS:
        count = "–"
    elif kind.plural:
        count = f"many (`{kind.plural}.<slot>`)"
    else:
        count = "one or none" if kind.optional else "one"
    keys = ", ".join(f"`{key}`" for key in kind.slot_keys)
    return f"| {kind.name} | {count} | `{kind.hook}` | `{kind.protocol}` | {kind.says} | {keys} |"


def components() -> str:
    """Every built-in component: what it is, and each option with type, default and meaning."""
    lines = [
        "# Built-in components",
        HEADER,
        "What `trinity plugins KIND NAME` prints, on one page. Plugins add to every kind.",
        "",
    ]
    for kind in CONFIG_KINDS.values():
        names = sorted(name for name, found in catalog(kind.name).items() if found.plugin == BUILTINS)
        if not names:
            continue
        lines += [f"## {kind.name}", "", f"A{'n' * (kind.name[0] in 'aeiou')} {kind.name} {kind.says}.", ""]
        for name in names:
            lines += _component(kind.name, name)
    return "\n".join(lines).rstrip() + "\n"


def _component(kind: str, name: str) -> list[str]:
    cls = resolve(kind, name)
    lines = [f"### {kind}={name}", "", _plain(describe.first_paragraph(cls)), ""]
    facts = [
        f"{key}: {_shown(getattr(cls, key))}" for key in ("scope", "unit", "reduction", "claims") if hasattr(cls, key)
    ]
    if facts:
        lines += [" · ".join(facts), ""]
    fields = describe.field_docs(cls)
    if fields:
        lines += ["| option | type | default | |", "|---|---|---|---|"]
        lines += [
            f"| `{f.name}` | {_code(f.type)} | {_code(f.default)} | {_cell(_plain(f.doc))} |" for f in fields.values()
        ]
        lines += [""]
    return lines


def _shown(value: object) -> str:
    return ", ".join(sorted(value)) or "none" if isinstance(value, frozenset) else str(value)


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _plain(text: str) -> str:
    """reStructuredText roles and double backticks to Markdown."""
    for role in (":class:", ":func:", ":mod:", ":meth:", ":data:"):
        text = text.replace(role, "")
    return text.replace("``", "`").replace("`~", "`")


def pages() -> dict[Path, str]:
    """Path and content of each generated page."""
    return {ROOT / "docs/hooks.md": hooks(), ROOT / "docs/components.md": components()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
