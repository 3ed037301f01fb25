"""Every class of docs/own-parts.md and of the README, as it stands there, runs and passes the kit."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from trinity_core.cli import main

pytestmark = pytest.mark.slow  # whole processes, one after the other

ROOT = Path(__file__).parent.parent.parent
PARTS = ("my_advantage.py", "my_reward.py", "my_tasks.py", "my_workflow.py", "my_world.py")


def blocks(language: str, page: str = "docs/own-parts.md") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


SECTIONS = {code.split("\n")[0].removeprefix("# "): (code, run) for code, run in zip(blocks("python"), blocks("bash"))}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the files of the page; the import path as it was comes back."""
    for name, (code, _) in SECTIONS.items():
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in SECTIONS:
        sys.modules.pop(name.removesuffix(".py"), None)


def words(name: str, command: str) -> list[str]:
    """The one line of the page that runs ``command`` on the part."""
    (line,) = [shlex.split(line) for line in SECTIONS[name][1].splitlines() if line.startswith(command)]
    return line[1:]


def test_the_page_has_a_part_of_each_kind():
    assert tuple(SECTIONS) == PARTS


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_page_runs_and_earns_reward(here, name):
    assert main([*words(name, "trinity run"), "out=run", "checkpoint.every=0"]) == 0
    lines = [json.loads(line) for line in (here / "run/metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward/mean"] for line in lines if "reward/mean" in line]
    assert rewards[-1] > rewards[0], "the table learns it"


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_page_passes_the_kit(here, name):
    done = subprocess.run([sys.executable, "-m", "pytest", *words(name, "pytest")], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
