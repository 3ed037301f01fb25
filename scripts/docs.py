"""The generated reference pages: ``python scripts/docs.py`` writes ``docs/hooks.md``, ``components.md`` and ``presets.md``; a test compares."""

from __future__ import annotations

import inspect
from pathlib import Path

import yaml

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


def presets() -> str:
    """What each preset is made of, read from its file."""
    lines = [
        "# Presets",
        HEADER.replace("docstring", "file in trinity_core/conf/algorithm"),
        "`algorithm=NAME` selects these parts and sets these values. `+` in the last column is what a run must bring beside it.",
        "",
        "| preset | attempts | advantage | loss | reduction | KL | what it is | a run brings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted((ROOT / "trinity_core/conf/algorithm").glob("*.yaml")):
        lines.append(_preset(path))
    return "\n".join(lines) + "\n"


BRINGS = {
    "value": "(the preset selects the critic)",
    "greedy": "(a greedy attempt per task is played)",
    "teacher_logp": "+ `teacher.path`",
    "teacher_logits": "+ `teacher.path`",
    "expert": "+ a taskset with expert data",
    "pairs": "+ pairs: from data, `operator=[best_worst]` or `[ask_people]`",
    "ref_logp": "(the reference is loaded)",
    "state": "+ a workflow that marks states",
}
"""Need -> what a run brings for it."""


def _preset(path: Path) -> str:
    text = path.read_text()
    read = yaml.safe_load(text)
    parts = {}
    for entry in read["defaults"]:
        key, value = next(iter(entry.items()))
        parts[key.removeprefix("override /")] = value
    what = text.splitlines()[1].removeprefix("# ")
    node = read["algorithm"]
    needs: set[str] = set()
    reduction = node["reduction"]
    for kind in ("advantage", "loss"):
        if parts[kind] is not None:
            component = resolve(kind, _component_of(kind, parts[kind]))
            needs |= component().needs()
            if kind == "loss":
                reduction = reduction or (
                    component.reduction if component.unit == "token" else f"mean over {component.unit}s"
                )
                if component.imitates and parts["advantage"] is None:
                    needs.add("expert")
    brings = sorted({BRINGS[need] for need in needs if need in BRINGS})
    kl = (
        f"{node['kl']['estimator']} in the {node['kl']['where']}, {node['kl']['coef']:g}" if parts["advantage"] else "-"
    )
    extra = [
        f"`{key.lstrip('/')}: {value}`" for key, value in parts.items() if key.startswith("/") or key == "operator"
    ]
    extra += [
        f"`{key}: {str(node[key]).lower()}`"
        for key in ("mask_truncated", "denominator")
        if node[key] not in (False, "all")
    ]
    cells = [path.stem, node["group_size"], parts["advantage"] or "-", parts["loss"], reduction, kl]
    return "| " + " | ".join([*map(str, cells), what, "; ".join([*brings, *extra])]) + " |"


def _component_of(kind: str, option: str) -> str:
    """The component's name behind an option file."""
    read = yaml.safe_load((ROOT / f"trinity_core/conf/{kind}/{option}.yaml").read_text())
    return read["name"] if "name" in read else _component_of(kind, read["defaults"][0])


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
    return {
        ROOT / "docs/hooks.md": hooks(),
        ROOT / "docs/components.md": components(),
        ROOT / "docs/presets.md": presets(),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
