"""Stages one after the other: what goes from one to the next, what a failure leaves, what a resume does."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.helpers import digest, start, trinity
from trinity_core.builtins.fake.table import read_folder
from trinity_core.cli import main
from trinity_core.config.compose import composer
from trinity_core.config.stages import plan_stages
from trinity_core.errors import ConfigError, RunError
from trinity_core.run.stages import StagedRun

pytestmark = pytest.mark.slow

BOTH = "stages=[two/first,two/second]"
FIRST, SECOND = "1-first", "2-second"


def run(*words: str, out: str = "run"):
    with composer() as loader:
        stages = plan_stages(loader, words)
    return StagedRun.new(stages, words, out=Path(out)).run(lambda line: None)


def again(folder: str, *words: str):
    return StagedRun.again(Path(folder), [f"resume={folder}", *words]).run(lambda line: None)


def digests(folder: Path) -> list[str]:
    return [digest(folder / stage) for stage in (FIRST, SECOND)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The two stages, run in one process and left alone. Read only."""
    from tests.stages.conftest import RECIPES

    folder = tmp_path_factory.mktemp("alone")
    for name, body in RECIPES.items():
        file = folder / "conf" / "recipe" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# @package _global_\n{body}")
    (folder / "conf" / ".trinity").touch()
    trinity("run", BOTH, "out=run", cwd=folder)
    return folder / "run"


# --- from one to the next ---------------------------------------------------------------------------------------------


def test_a_stage_starts_from_the_weights_of_the_one_before(project):
    summary = run(BOTH, 'over={2: ["optim.lr=0"]}')
    first, second = summary["stages"]
    assert first["weights_sha256"] == second["weights_sha256"] != "", "a rate of 0 leaves them as they came"
    exported = project / "run" / FIRST / "export" / "step-000004"
    words = json.loads((project / "run" / SECOND / "words.json").read_text())["words"]
    assert f"model.path={exported}" in words
    assert read_folder(exported).shape == (4096, 101)
    assert first["eval_after"]["accuracy"] == second["eval_before"]["accuracy"]


def test_the_last_stages_weights_are_not_exported(project):
    run(BOTH)
    assert (project / "run" / FIRST / "export").is_dir() and not (project / "run" / SECOND / "export").exists()


def test_the_summary_is_of_the_whole(project):
    summary = run(BOTH)
    assert summary == json.loads((project / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 4 + 5)
    assert [(row["name"], row["status"], row["steps"]) for row in summary["stages"]] == [
        ("two/first", "finished", 4),
        ("two/second", "finished", 5),
    ]
    assert summary["eval_before"] == summary["stages"][0]["eval_before"]
    assert summary["eval_after"] == summary["stages"][1]["eval_after"]
    assert summary["next"] == [f"trinity export {project}/run/{SECOND} MODEL_DIR"]


def test_the_command_prints_a_row_for_each_stage(project, capsys):
    assert main(["run", BOTH, "out=run"]) == 0
    told = capsys.readouterr()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in told.out.splitlines() if line.startswith("│")]
    before, between, after = (row["accuracy"] for row in evaluations(project / "run"))
    assert rows == [
        ["1", "two/first", "finished", "4", f"{before:.3f}", f"{between:.3f}", f"{project}/run/{FIRST}"],
        ["2", "two/second", "finished", "5", f"{between:.3f}", f"{after:.3f}", f"{project}/run/{SECOND}"],
    ]
    assert "stage 2 (two/second) of 2" in told.err


def evaluations(folder: Path) -> list[dict]:
    first, second = (json.loads((folder / stage / "evaluations.json").read_text()) for stage in (FIRST, SECOND))
    return [first[0], first[-1], second[-1]]


def test_a_folder_of_stages_is_not_taken_for_a_run(project, capsys):
    run(BOTH)
    assert main(["digest", "run"]) == 2
    assert f"a run of stages. Name the folder of one: {FIRST}, {SECOND}" in capsys.readouterr().err


def test_each_cell_of_a_sweep_equals_the_same_stages_alone(project, capsys):
    assert main(["run", "-m", BOTH, "seed=4,5", "out=cells"]) == 0
    run(BOTH, "seed=5")
    assert digests(project / "cells" / "1") == digests(project / "run") != digests(project / "cells" / "0")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert len(rows) == 2 and all("finished" in row for row in rows)


COUNTING = """
import gc
from dataclasses import dataclass
from pathlib import Path
from trinity_core.protocols import Tracker

@dataclass(frozen=True)
class Counting(Tracker):
    def started(self, run):
        models = [one for one in gc.get_objects() if type(one).__name__ == "LiveFake"]
        with open("models.txt", "a") as file:
            file.write(f"{len(models)} ")
"""


def test_a_stages_model_is_gone_before_the_next_is_loaded(project):
    (project / "counting.py").write_text(COUNTING)
    gc.collect()
    before = sum(type(one).__name__ == "LiveFake" for one in gc.get_objects())
    gc.disable()
    try:
        run(BOTH, "tracker=[counting:Counting]")
    finally:
        gc.enable()
        sys.modules.pop("counting", None)
    counted = [int(word) - before for word in (project / "models.txt").read_text().split()]
    assert counted == [1, 1]


# --- failures ---------------------------------------------------------------------------------------------------------

MOODY = """
from dataclasses import dataclass
from pathlib import Path
from trinity_core.protocols import Tracker

@dataclass(frozen=True)
class Moody(Tracker):
    fails: bool = False
    def step(self, step, metrics):
        assert not (self.fails and step == 3 and Path("mood").exists()), "in a mood"
"""
MOODS = ("tracker=[jsonl,moody:Moody]", 'over={2: ["trackers.moody.fails=true"]}')


@pytest.fixture
def moody(project):
    """A tracker that fails in step 3 while there is a file ``mood``."""
    (project / "moody.py").write_text(MOODY)
    (project / "mood").touch()
    yield project / "mood"
    sys.modules.pop("moody", None)


def test_a_failed_stage_stops_the_run_with_one_message(project, moody, capsys):
    assert main(["run", BOTH, *MOODS, "out=run"]) == 1
    told = capsys.readouterr()
    assert told.err.count("in a mood") == 1 and "Traceback" not in told.err
    assert "trinity run: stage 2 (two/second): step " in told.err
    assert f"The stages go on with: trinity run resume={project}/run" in told.err
    summary = json.loads((project / "run" / "summary.json").read_text())
    assert summary["status"] == "failed" and "in a mood" in summary["error"]
    assert [row["status"] for row in summary["stages"]] == ["finished", "failed"]


def test_a_failed_first_stage_keeps_the_second_from_starting(project, moody):
    with pytest.raises(RunError, match=r"^stage 1 \(two/first\): step .*in a mood"):
        run(BOTH, MOODS[0], 'over={1: ["trackers.moody.fails=true"]}')
    summary = json.loads((project / "run" / "summary.json").read_text())
    assert [row["status"] for row in summary["stages"]] == ["failed", "waiting"]
    assert not (project / "run" / SECOND).exists()


def test_a_failed_stage_resumes_where_it_was(project, moody):
    with pytest.raises(RunError):
        run(BOTH, *MOODS)
    ended = (project / "run" / FIRST / "summary.json").stat().st_mtime_ns
    moody.unlink()
    summary = again("run")
    assert summary["status"] == "finished" and "error" not in summary
    assert (project / "run" / FIRST / "summary.json").stat().st_mtime_ns == ended, "what had ended was left alone"
    run(BOTH, *MOODS, out="alone")
    assert digests(project / "run") == digests(project / "alone")


def test_stages_that_never_began_leave_no_folder(project):
    with pytest.raises(RunError, match=r"^stage 1 \(two/first\)") as caught:
        run(BOTH, "backend.alphabet='é'")
    assert "resume=" not in str(caught.value) and not (project / "run").exists()
    run(BOTH)


# --- resume -----------------------------------------------------------------------------------------------------------


def test_a_resume_of_what_has_ended_does_nothing(project):
    summary = run(BOTH)
    files = {path: path.stat().st_mtime_ns for path in (project / "run").glob("*/*") if path.is_file()}
    after = again("run")
    assert after["stages"] == summary["stages"]
    assert files == {path: path.stat().st_mtime_ns for path in (project / "run").glob("*/*") if path.is_file()}


def test_a_resume_takes_no_other_words(project):
    run(BOTH)
    with pytest.raises(
        ConfigError,
        match=r"steps=9: a run of stages goes on as it was typed. For one stage: trinity run resume=run/N-NAME steps=9",
    ):
        again("run", "steps=9")  # fmt: skip


def test_a_stage_that_was_trained_further_by_itself_hands_on_what_it_is_now(project):
    """The weights of step 4 lie there, and never pass for those of step 6."""
    run(BOTH)
    shutil.rmtree(project / "run" / SECOND)
    assert main(["run", f"resume=run/{FIRST}", "steps=6"]) == 0
    again("run")
    words = json.loads((project / "run" / SECOND / "words.json").read_text())["words"]
    assert words[-1].endswith("export/step-000006")


def test_a_stage_that_had_not_begun_is_the_one_that_was_checked(project):
    run(BOTH)
    shutil.rmtree(project / "run" / SECOND)
    recipe = project / "conf" / "recipe" / "two" / "second.yaml"
    recipe.write_text(recipe.read_text() + "optim: {lr: 0.7}\n")
    with pytest.raises(
        ConfigError, match=r"stage 2 \(two/second\): optim\.lr was 0\.3 and is now 0\.7, and nobody typed"
    ):
        again("run")
    again("run", "resume_config=new")
    assert "lr: 0.7" in (project / "run" / SECOND / "config.yaml").read_text()


def test_changed_stages_are_refused(project):
    run("recipe=both")
    recipe = project / "conf" / "recipe" / "both.yaml"
    recipe.write_text(recipe.read_text().replace("two/second]", "two/first]"))
    with pytest.raises(ConfigError, match=r"its stages were two/first, two/second and are now two/first, two/first"):
        again("run")


# --- killed -----------------------------------------------------------------------------------------------------------


def test_a_kill_before_the_export_was_renamed_leaves_none(alone, tmp_path):
    """The process ends at the very last moment; the next one writes it whole."""
    target = tmp_path / "export"
    code = (
        "import os, sys; from pathlib import Path; from trinity_core.run.export import export_whole\n"
        "if sys.argv[3] == 'die': os.replace = lambda old, new: os._exit(9)\n"
        "export_whole(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(alone / FIRST), str(target)]
    for how, ends in (("die", 9), ("live", 0)):
        done = subprocess.run([*command, how], cwd=alone.parent, capture_output=True, text=True)
        assert done.returncode == ends, done.stderr
        assert [path.name for path in tmp_path.iterdir()] == [".export.tmp" if how == "die" else "export"]
    assert (read_folder(target) == read_folder(alone / FIRST / "export" / "step-000004")).all()


@pytest.mark.parametrize("half", [False, True])
def test_a_kill_between_two_stages_changes_nothing(project, alone, half):
    """The first has ended; its export had not begun, or was half written."""
    run(BOTH)
    shutil.rmtree(project / "run" / SECOND)
    (project / "run" / "summary.json").unlink()
    shutil.rmtree(exports := project / "run" / FIRST / "export")
    if half:
        aside = exports / ".step-000004.tmp"
        aside.mkdir(parents=True)
        (aside / "config.json").write_text("{")
    assert again("run")["status"] == "finished"
    assert digests(project / "run") == digests(alone)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [FIRST, SECOND])
def test_a_kill_inside_a_stage_changes_nothing(project, alone, stage):
    words = (BOTH, "engine.latency_s=0.1")  # the words of the run left alone, but slower
    process = start("run", *words, "out=run", cwd=project)
    steps = project / "run" / stage / "metrics.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (steps.is_file() and '"step": 3' in steps.read_text()):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (project / "run" / "summary.json").exists()
    trinity("run", "resume=run", cwd=project)
    assert digests(project / "run") == digests(alone)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_stages_with_its_shell_code(project, number, code):
    process = start("run", BOTH, "steps=100000", "out=run", cwd=project)
    steps = project / "run" / FIRST / "metrics.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (steps.is_file() and '"step"' in steps.read_text()):
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(timeout=60) == code
    summary = json.loads((project / "run" / "summary.json").read_text())
    assert [row["status"] for row in summary["stages"]] == ["interrupted", "waiting"]
    assert summary["next"] == [f"trinity run resume={project}/run"]
