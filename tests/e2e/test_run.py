"""Whole runs on the table policy: what a run leaves behind, and what it is worth."""

from __future__ import annotations

import json

import pytest

from tests.e2e.helpers import DIGITS, FAKE, digest, summary, trinity

pytestmark = pytest.mark.slow

RUN = ("run", *FAKE, *DIGITS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run of 30 steps with a held-out evaluation, in ``out``."""
    folder = tmp_path_factory.mktemp("run")
    words = ("+taskset@eval.tasksets.heldout=trinity_core.testing.fakes:Digits", "eval.every=10")
    done = trinity(*RUN, *words, "steps=30", "out=out", cwd=folder)
    return folder / "out", done


def test_a_run_learns(finished):
    folder, _ = finished
    result = summary(folder)
    assert result["eval_before"]["accuracy"] <= 0.4
    assert result["eval_after"]["accuracy"] >= 0.9
    assert result["eval_after"]["ci_low"] <= result["eval_after"]["accuracy"] <= result["eval_after"]["ci_high"]


def test_a_run_folder_holds_everything(finished):
    folder, _ = finished
    for name in ("words.json", "config.yaml", "manifest.json", "metrics.jsonl", "buffer.db", "summary.json"):
        assert (folder / name).is_file(), name
    result = summary(folder)
    assert result["status"] == "finished" and result["steps"] == 30 and result["seed"] == 0
    assert len(result["weights_sha256"]) == 64
    assert result["train_seconds"] > 0
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if line["event"] == "step"] == list(range(1, 31))


def test_the_plan_comes_before_the_run_and_the_next_command_after_it(finished):
    _, done = finished
    assert "4 tasks × 8 attempts = 32" in done.stdout
    assert "trinity run resume=" in done.stdout


def test_an_audit_of_a_finished_run_is_clean(finished):
    folder, _ = finished
    assert trinity("audit", str(folder), cwd=folder.parent).returncode == 0


def test_evaluation_does_not_change_a_byte_of_the_weights(finished, tmp_path):
    folder, _ = finished
    trinity(*RUN, "steps=30", "out=bare", cwd=tmp_path)
    assert summary(tmp_path / "bare")["weights_sha256"] == summary(folder)["weights_sha256"]
    assert digest(tmp_path / "bare") == digest(folder)


def test_two_halves_with_a_resume_equal_one_whole(tmp_path):
    trinity(*RUN, "steps=6", "out=whole", cwd=tmp_path)
    trinity(*RUN, "steps=3", "out=halves", cwd=tmp_path)
    assert digest(tmp_path / "halves") != digest(tmp_path / "whole")
    trinity("run", "resume=halves", "steps=6", cwd=tmp_path)
    assert digest(tmp_path / "halves") == digest(tmp_path / "whole")


def test_another_seed_is_another_run(tmp_path):
    for seed in (0, 1):
        trinity(*RUN, "steps=2", f"seed={seed}", f"out=s{seed}", cwd=tmp_path)
    assert digest(tmp_path / "s0") != digest(tmp_path / "s1")


def test_an_offset_run_is_deterministic_and_resumes(tmp_path):
    ahead = ("sync.offset=1", "correction=[truncated_is]")
    trinity(*RUN, *ahead, "steps=6", "out=whole", cwd=tmp_path)
    trinity(*RUN, *ahead, "steps=3", "out=halves", cwd=tmp_path)
    trinity("run", "resume=halves", "steps=6", cwd=tmp_path)
    assert digest(tmp_path / "halves") == digest(tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [line["staleness/max"] for line in lines if line["event"] == "step"] == [0, 1, 1, 1, 1, 1]


def test_a_difference_nobody_typed_is_refused(tmp_path):
    trinity(*RUN, "steps=2", "out=run", cwd=tmp_path)
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("clip_low: 0.2", "clip_low: 0.1"))
    refused = trinity("run", "resume=run", "steps=4", cwd=tmp_path, check=False)
    assert refused.returncode == 2
    assert "loss.clip_low was 0.1 and is now 0.2" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_what_a_run_keeps_for_life_cannot_change(tmp_path):
    trinity(*RUN, "steps=2", "out=run", cwd=tmp_path)
    refused = trinity("run", "resume=run", "steps=4", "seed=7", cwd=tmp_path, check=False)
    assert refused.returncode == 2
    assert "seed was 0 and is now 7" in refused.stderr


def test_a_resume_trains_exactly_the_steps_that_are_left(tmp_path):
    """RES-01: a resume at a boundary trains the rest, and one with nothing left says so."""
    trinity(*RUN, "steps=2", "out=run", cwd=tmp_path)
    again = trinity("run", "resume=run", cwd=tmp_path)
    assert "already has its 2 steps" in again.stdout + again.stderr
    trinity("run", "resume=run", "steps=5", cwd=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "step"] == [1, 2, 3, 4, 5]


def test_bench_evaluates_and_trains_nothing(tmp_path):
    words = ("+taskset@eval.tasksets.heldout=trinity_core.testing.fakes:Digits", "mode=bench")
    trinity(*RUN, *words, "out=run", cwd=tmp_path)
    assert summary(tmp_path / "run")["bench"][0]["n"] > 0
    refused = trinity(*RUN, "mode=bench", "out=other", cwd=tmp_path, check=False)
    assert refused.returncode == 2 and "no eval taskset" in refused.stderr
    assert not (tmp_path / "other").exists()


def test_explore_alone_fills_the_buffer_and_ends(tmp_path):
    trinity(*RUN, "mode=explore", "steps=3", "out=run", cwd=tmp_path)
    report = trinity("audit", str(tmp_path / "run"), cwd=tmp_path)
    assert "12" in report.stdout
