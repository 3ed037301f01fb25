"""The pages on families of algorithms: every preset and part of an algorithm is on one, and each run that one names is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from trinity_core.commands.sweep import plan
from trinity_core.config.check import check
from trinity_core.config.compose import composer
from trinity_core.config.hydra_plugin import options
from trinity_core.config.stages import plan_stages
from trinity_core.plugins import catalog

ROOT = Path(__file__).parent.parent.parent
FAMILIES = (
    "critic",
    "distillation",
    "expert-data",
    "lora",
    "off-policy",
    "policy-gradient",
    "preference",
    "several-turns",
)
PAGES = {name: (ROOT / f"docs/{name}.md").read_text() for name in FAMILIES}
CODE = re.compile(r"^```bash\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)


def named(text: str) -> set[str]:
    """Words that stand in code on a page."""
    return {word for found in CODE.finditer(text) for word in re.findall(r"\w+", found.group(1) or found.group(2))}


NAMED = set().union(*map(named, PAGES.values()))


def runs(text: str) -> list[str]:
    """The lines of a page that start a run."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("trinity run ")]


RUNS = [(page, line) for page, text in PAGES.items() for line in runs(text)]


def test_every_preset_is_named_on_a_family_page():
    assert not sorted(set(options("algorithm")) - NAMED)


@pytest.mark.parametrize("kind", ["advantage", "loss", "correction"])
def test_every_built_in_part_of_an_algorithm_is_named_on_a_family_page(kind):
    built_in = {name for name, found in catalog(kind).items() if found.plugin == "builtins"}
    assert built_in and not sorted(built_in - NAMED)


@pytest.mark.parametrize("kind", ["advantage", "loss", "correction"])
def test_every_option_file_of_an_algorithm_s_parts_is_named_on_a_family_page(kind):
    assert not sorted(set(options(kind)) - NAMED)


def test_every_family_page_has_runs_and_is_linked():
    assert {page for page, _ in RUNS} == set(FAMILIES)
    for index in ("README.md", "docs/architecture.md"):
        text = (ROOT / index).read_text()
        assert all(f"{page}.md)" in text for page in FAMILIES), index


@pytest.mark.slow
@pytest.mark.parametrize(("page", "line"), RUNS, ids=[line.removeprefix("trinity run ") for _, line in RUNS])
def test_a_run_of_a_family_page_is_accepted(page, line, tmp_path, monkeypatch):
    """Composed and checked as typed; nothing is loaded."""
    monkeypatch.chdir(tmp_path)
    words = [word for word in shlex.split(line, comments=True)[2:] if word != "&"]
    if "-m" in words:
        assert len(plan([word for word in words if word != "-m"])) > 1
        return
    with composer() as loader:
        if not plan_stages(loader, words):
            check(loader.compose(words))
