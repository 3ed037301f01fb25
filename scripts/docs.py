"""The generated reference pages: ``python scripts/docs.py`` writes ``docs/hooks.md``, ``components.md``, ``keys.md`` and
``presets.md``; a test compares."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import get_args, get_type_hints

import yaml

from trinity_core import describe, hookspecs
from trinity_core.config import schema
from trinity_core.config.rules import LEAST, MOST
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


def keys() -> str:
    """Every key of a run that belongs to the kernel, node by node, and the keys of its slots."""
    lines = [
        "# Keys of a run",
        HEADER,
        "Every key that belongs to no component; those of [components](components.md) stand beside them in the same tree. A value is a "
        "word, `optim.lr=1e-6`; how they are written: [config](config.md). In YAML and in words `None` is `null`, `True` is `true`.",
        "",
        "## The run",
        "",
        *_table(schema.RunConfig, "", leave=[*(name for name, _ in _nodes(schema.RunConfig, "")), "parts"]),
    ]
    for path, cls in _nodes(schema.RunConfig, ""):
        lines += _node(path, cls)
    lines += ["## Slots", "", "Beside the values of the component that stands in it.", ""]
    lines += _table(schema.Slot, "tasksets.<slot>") + _table(schema.RewardSlot, "rewards.<slot>")
    lines += [
        "## Values that change with the step",
        "",
        "In the place of a number, where the type of a key says so.",
        "",
    ]
    for cls in (schema.Schedule, schema.PeakSchedule):
        lines += [f"`{cls.__name__}`. {_plain(describe.first_paragraph(cls))}", "", *_table(cls, "<key>")]
    return "\n".join(lines).rstrip() + "\n"


def _nodes(cls: type, path: str) -> list[tuple[str, type]]:
    """(path, class) of each node directly under ``cls``; schedules are values, not nodes."""
    found = []
    for name, hint in get_type_hints(cls).items():
        inner = [part for part in (hint, *get_args(hint)) if dataclasses.is_dataclass(part)]
        if inner and inner[0] not in (schema.Schedule, schema.Part, schema.Slot):
            found.append((f"{path}.{name}".lstrip("."), inner[0]))
    return found


def _node(path: str, cls: type) -> list[str]:
    inner = _nodes(cls, path)
    beside = {
        "critic": " `null`, the default, is none; `critic=value_head` selects one.",
        "model.lora": " `null`, the default, is none.",
        "eval": " Tasks to evaluate on are a slot: `+taskset@eval.tasksets.heldout=numbers`.",
    }.get(path, "")
    lines = [f"## {path}", "", _plain(describe.first_paragraph(cls)) + beside, ""]
    lines += _table(cls, path, leave=[name.rpartition(".")[2] for name, _ in inner])
    for below, inner_cls in inner:
        lines += _node(below, inner_cls)
    return lines


def _table(cls: type, path: str, leave: Sequence[str] = ()) -> list[str]:
    """Rows of every field of ``cls`` but those of ``leave``, with the limits that a check holds it to."""
    lines = ["| key | type | default | |", "|---|---|---|---|"]
    for f in describe.field_docs(cls).values():
        if f.name in leave:
            continue
        key = f"{path}.{f.name}".lstrip(".")
        least, most = LEAST.get(key), MOST.get(key)
        limits = [f"{'≥' if least[1] else '>'} {least[0]:g}"] if least else []
        limits += [f"≤ {most:g}"] if most is not None else []
        kind = " ".join([_code(f.type), ", ".join(limits)]).rstrip()
        lines.append(f"| `{key}` | {kind} | {_code(f.default)} | {_cell(_plain(f.doc))} |")
    return [*lines, ""]


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
        ROOT / "docs/keys.md": keys(),
        ROOT / "docs/presets.md": presets(),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
