"""Sweeps: every cell is checked before the first runs, and equals the same run alone."""

from __future__ import annotations

from tests.e2e.helpers import DIGITS, FAKE, digest, trinity


def test_each_cell_of_a_sweep_equals_the_same_run_alone(tmp_path):
    words = ("run", *FAKE, *DIGITS, "steps=3")
    done = trinity(*words, "-m", "seed=0,1", "algorithm.group_size=4,8", "out=sweep", cwd=tmp_path)
    cells = sorted(path for path in (tmp_path / "sweep").iterdir() if path.is_dir())
    assert len(cells) == 4
    assert done.stdout.count("finished") >= 4
    alone = [(seed, size) for seed in (0, 1) for size in (4, 8)]
    for cell, (seed, size) in zip(cells, alone):
        trinity(*words, f"seed={seed}", f"algorithm.group_size={size}", f"out=alone-{seed}-{size}", cwd=tmp_path)
        assert digest(cell) == digest(tmp_path / f"alone-{seed}-{size}")


def test_a_bad_cell_is_named_before_anything_runs(tmp_path):
    done = trinity("run", *FAKE, *DIGITS, "-m", "seed=0,x", "out=sweep", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "seed=x" in done.stderr
    assert not (tmp_path / "sweep").exists() or not any((tmp_path / "sweep").iterdir())
