"""``trinity plugins [KIND [NAME]]``: what is installed, what each component is, what is wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from trinity_core.errors import ConfigError, TrinityError
from trinity_core.kinds import CONFIG_KINDS, KINDS
from trinity_core.plugins import catalog, did_you_mean, plugins, resolve

USAGE = """usage: trinity plugins [KIND [NAME]]

Without words: every plugin, its components and its problems. With a kind: its components. With a name: its options."""


def main(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        print(USAGE)
        return 0
    if len(argv) > 2:
        raise ConfigError(f"expected [KIND [NAME]], got {len(argv)} words.\n{USAGE}")
    if not argv:
        return _everything()
    kind = argv[0]
    if kind not in KINDS:
        raise ConfigError(f"no kind named {kind!r}.{did_you_mean(kind, KINDS)} Kinds: {', '.join(KINDS)}")
    return _one_kind(kind) if len(argv) == 1 else _one_component(kind, argv[1])


def _everything() -> int:
    found = plugins()
    for info in found:
        state = "" if info.status == "ok" else f"  {info.status.upper()}"
        print(f"{info.name}  ({info.distribution} {info.version}){state}")
        for kind in KINDS:
            if names := info.components.get(kind):
                line = textwrap.fill(", ".join(sorted(names)), width=100, subsequent_indent=" " * 20)
                print(f"  {kind:16}  {line}")
        for problem in info.problems:
            print(f"  ! {problem}")
    print("\nOptions of one component: trinity plugins KIND NAME")
    return 0


def _one_kind(kind: str) -> int:
    print(f"{kind}: {KINDS[kind].says}")
    for name, found in catalog(kind).items():
        print(f"  {name:22}{found.target}  ({found.plugin})")
    if not catalog(kind):
        print("  none installed")
    return 0


def _one_component(kind: str, name: str) -> int:
    from trinity_core.config.project import activate, find_project
    from trinity_core.describe import field_docs, first_paragraph

    if ":" in name:
        activate(find_project())  # my_file.py is where a run would find it
    try:
        cls = resolve(kind, name)
    except TrinityError as error:
        raise type(error)(f"{kind} {name}: {error}" if name not in str(error) else str(error)) from error
    print(f"{kind} {name}  {cls.__module__}:{cls.__qualname__}\n")
    print(textwrap.fill(first_paragraph(cls) or "(no docstring)", width=100))
    fields = field_docs(cls)
    print("\noptions:" if fields else "\nno options")
    for option in fields.values():
        print(f"  {option.name}: {option.type} = {option.default}")
        if option.doc:
            print(textwrap.fill(option.doc, width=100, initial_indent="      ", subsequent_indent="      "))
    if kind in CONFIG_KINDS:
        node = KINDS[kind].plural
        print(
            f"\nselect it: {kind}=[{name}]  (values: {node}.{name}.KEY=VALUE)"
            if node
            else f"\nselect it: {kind}={name}"
        )
    return 0
