"""The reference pages are the code's own words, and what prose names exists."""

from __future__ import annotations

import dataclasses
import inspect
import re
import runpy
from pathlib import Path

import pytest

from trinity_core import hookspecs
from trinity_core.config import schema
from trinity_core.kinds import CONFIG_KINDS, KINDS

ROOT = Path(__file__).parent.parent.parent
docs = runpy.run_path(str(ROOT / "scripts/docs.py"))
PROSE = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", ["hooks", "components", "keys", "presets"])
def test_generated_page_is_fresh(page):
    path = ROOT / f"docs/{page}.md"
    assert path.read_text() == docs[page](), f"{path.name} is stale: run make docs"


@pytest.mark.parametrize("name", [name for name in vars(hookspecs) if name.startswith("trinity_")])
def test_every_hook_is_documented_and_says_when_it_is_called(name):
    doc = inspect.getdoc(getattr(hookspecs, name)) or ""
    assert re.match(r"(At discovery|When) ?", doc), f"{name}: the first words of its docstring give the moment"
    assert f"### `{name}`" in (ROOT / "docs/hooks.md").read_text()


@pytest.mark.parametrize("kind", CONFIG_KINDS)
def test_every_builtin_component_is_on_the_page(kind):
    from trinity_core.plugins import catalog

    page = (ROOT / "docs/components.md").read_text()
    missing = [
        name
        for name, found in catalog(kind).items()
        if found.plugin == "builtins" and f"### {kind}={name}\n" not in page
    ]
    assert not missing


def test_every_key_of_a_run_has_a_meaning():
    """The page of keys and whoever reads the schema see the same string."""
    from trinity_core.describe import field_docs

    classes = [cls for cls in vars(schema).values() if inspect.isclass(cls) and dataclasses.is_dataclass(cls)]
    nodes = {cls.__name__ for cls in classes}
    silent = [
        f"{cls.__name__}.{field.name}"
        for cls in classes
        for field in field_docs(cls).values()
        if not field.doc and cls is not schema.Part and not nodes & set(re.findall(r"\w+", field.type))
    ]
    assert not silent


def test_the_page_of_keys_has_every_value_of_a_composed_run():
    from omegaconf import OmegaConf

    from trinity_core.config.compose import compose

    page, parts = (ROOT / "docs/keys.md").read_text(), [kind.node for kind in CONFIG_KINDS.values()]
    tree = OmegaConf.to_container(compose(["recipe=fake", "critic=value_head", "model.lora={rank: 4}"]))
    values = [path for path in leaves(tree) if path.split(".")[0] not in (*parts, "models") and "tasksets" not in path]
    assert len(values) > 60 and [path for path in values if f"| `{path}` |" not in page] == []


def leaves(node, path=""):
    for key, value in node.items():
        where = f"{path}.{key}".lstrip(".")
        yield from leaves(value, where) if isinstance(value, dict) and value else [where]


def test_every_kind_has_its_hook():
    registered = {name for name in vars(hookspecs) if name.startswith("trinity_")}
    assert registered == {kind.hook for kind in KINDS.values()} | {"trinity_conf", "trinity_install_hint"}


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_files_named_in_prose_exist(page):
    """``trinity_core/…`` or a link that leads nowhere sends a reader astray."""
    text = page.read_text()
    named = set(re.findall(r"`((?:trinity_core|plugins|tests|scripts|docs|benchmarks)/[\w./-]+)`", text))
    linked = {link.split("#")[0] for link in re.findall(r"\]\(([^)h][^)]*)\)", text)} - {""}
    absent = [path for path in named if not (ROOT / path).exists()] + [
        path for path in linked if not (page.parent / path).exists()
    ]
    assert not absent


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_make_targets_named_in_prose_exist(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(), re.MULTILINE))
    assert named <= targets
