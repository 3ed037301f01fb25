"""``trinity new NAME --kind KIND``: a complete pip package that passes the conformance kit unedited."""

from __future__ import annotations

import keyword
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import trinity_core
from trinity_core.errors import ConfigError
from trinity_core.kinds import DISTRIBUTION_PREFIX
from trinity_core.kinds import KINDS as ALL_KINDS

KINDS = ("reward", "workflow", "loss", "advantage", "taskset", "environment")
USAGE = f"""usage: trinity new NAME --kind KIND [--in FOLDER]

Makes FOLDER/trinity-plugin-NAME (FOLDER: here) with a component, its option, tests, README and pyproject.toml. It installs
with pip and passes the conformance kit as it is; then make it yours.
kinds: {", ".join(KINDS)}"""


def main(argv: Sequence[str]) -> int:
    if not argv or any(word in ("-h", "--help") for word in argv):
        print(USAGE)
        return 0 if argv else 2
    name, kind, folder = _read(list(argv))
    root = make(name, kind, folder)
    plugin = root.name.removeprefix(DISTRIBUTION_PREFIX)
    component = plugin.replace("-", "_")
    print(f"made {root}\n\nnext:")
    for line in (
        f"pip install -e {shlex.quote(str(root))}",
        f"pytest --trinity-conformance={plugin}",
        f"trinity plugins {kind} {component}",
        f"trinity run recipe=fake {select_words(kind, component)}",
    ):
        print(f"  {line}")
    return 0


def make(name: str, kind: str, folder: Path) -> Path:
    """Write the package into ``folder`` and return its root. Refuses to touch a folder that exists."""
    plugin = name.removeprefix(DISTRIBUTION_PREFIX).replace("_", "-")
    component = plugin.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", plugin) or keyword.iskeyword(component):
        raise ConfigError(f"{name!r} is no name for a package: lower-case words with hyphens, e.g. length-bonus")
    if kind not in KINDS:
        from trinity_core.plugins import did_you_mean

        raise ConfigError(f"--kind {kind}: no template.{did_you_mean(kind, KINDS)} Kinds: {', '.join(KINDS)}")
    root = folder / f"{DISTRIBUTION_PREFIX}{plugin}"
    if root.exists():
        raise ConfigError(f"{root} exists and is left as it is. Choose another name, or another place with --in FOLDER")
    package = f"trinity_{component}"
    major, minor, *_ = trinity_core.__version__.split(".")
    values = {
        "name": component,
        "plugin": plugin,
        "distribution": root.name,
        "package": package,
        "kind": kind,
        "cls": "".join(word.capitalize() for word in component.split("_")),
        "hook": ALL_KINDS[kind].hook,
        "version": trinity_core.__version__,
        "next_version": f"{major}.{int(minor) + 1}" if major == "0" else f"{int(major) + 1}",
        "select": select_words(kind, component),
    }
    source = root / "src" / package
    files = {
        "package/pyproject.toml": root / "pyproject.toml",
        "package/README.md": root / "README.md",
        "package/gitignore": root / ".gitignore",
        "package/plugin.py": source / "plugin.py",
        f"kinds/{kind}/component.py": source / f"{component}.py",
        f"kinds/{kind}/option.yaml": source / "conf" / kind / f"{component}.yaml",
        f"kinds/{kind}/test.py": root / "tests" / f"test_{component}.py",
    }
    templates = Path(trinity_core.__file__).parent / "template"
    for template, target in files.items():
        _write(target, _fill((templates / f"{template}.tmpl").read_text(encoding="utf-8"), values))
    _write(source / "__init__.py", f'"""The {kind} ``{component}`` for Trinity."""\n')
    _write(source / "conf" / "__init__.py", "")
    return root


def select_words(kind: str, component: str) -> str:
    """The words that select it in a run on ``fake``."""
    words = [f"'{kind}=[{component}]'" if ALL_KINDS[kind].plural else f"{kind}={component}"]
    if kind == "environment":
        words += ["workflow=multi_turn", "'reward=[]'"]
    return " ".join(words)


def _read(words: list[str]) -> tuple[str, str, Path]:
    names, kind, folder = [], None, Path.cwd()
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if option in ("--kind", "--in"):
            if not equals:
                if not words:
                    raise ConfigError(f"{option}: a value is needed\n{USAGE}")
                value = words.pop(0)
            kind, folder = (value, folder) if option == "--kind" else (kind, Path(value))
        elif word.startswith("-"):
            raise ConfigError(f"{word}: no such option\n{USAGE}")
        else:
            names.append(word)
    if len(names) != 1 or kind is None:
        raise ConfigError(f"a NAME and a --kind are needed\n{USAGE}")
    return names[0], kind, folder


def _fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
