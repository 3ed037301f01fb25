"""The page of performance says what was measured, and a missed limit is a failure."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def load(name: str):
    """A module of benchmarks/, which is no package: its scripts import each other by bare name."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common, report = load("common"), load("report")


def judged(capsys, figures, limits):
    """(exit status, JSON line) of a benchmark that ends with these figures."""
    with pytest.raises(SystemExit) as ended:
        common.finish("some", figures, limits, versions_of={})
    return ended.value.code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_page_is_that_of_the_stored_results():
    stored = json.loads((ROOT / "benchmarks/results.json").read_text())
    assert (ROOT / "docs/performance.md").read_text() == report.page(stored), (
        "docs/performance.md is stale: run python benchmarks/report.py --only, which measures nothing"
    )


def test_every_benchmark_of_the_page_has_its_script_and_a_row_in_the_readme():
    table = (ROOT / "benchmarks/README.md").read_text()
    assert not [name for name in report.NAMES if f"| `{name}.py` |" not in table]
    assert not [name for name in report.NAMES if not (ROOT / f"benchmarks/{name}.py").exists()]


@pytest.mark.parametrize(
    ("value", "limit", "holds"),
    [(8.0, ">= 8", True), (7.99, ">= 8", False), (0.5, "<= 0.4", False), (3, "< 4", True)],
)
def test_a_missed_limit_is_exit_status_1(capsys, value, limit, holds):
    status, line = judged(capsys, {"ratio": value}, {"ratio": limit})
    assert status == (0 if holds else 1)
    assert line["limits"] == {"ratio": {"limit": limit, "holds": holds}}


def test_what_was_not_measured_misses_its_limit(capsys):
    status, line = judged(capsys, {"ratio": None}, {"ratio": ">= 1"})
    assert status == 1 and line["figures"] == {"ratio": None}


def test_a_benchmark_that_failed_stands_on_the_page_with_the_reason():
    page = report.page({"memory": {"failed": "exit status 1: no disk", "commit": "0", "date": "2020-01-01"}})
    assert "| memory | – | not measured: exit status 1: no disk | | **no** |" in page
    assert "| gpu | – | not measured: it was not run yet | |  |" in page


def test_paths_of_this_machine_are_not_published():
    said = report.public(f"{ROOT}/.venv-trl/bin/python: no Python with trl")
    assert said == ".venv-trl/bin/python: no Python with trl"
