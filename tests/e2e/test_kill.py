"""A run killed at any moment and resumed is the run that was left alone."""

from __future__ import annotations

import pytest

from tests.e2e.kill import VARIANTS, experiment

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_run_ends_as_if_it_never_was(variant, tmp_path):
    """A tiny random Llama, killed at two random moments; ``tests/e2e/kill.py`` does twenty."""
    trials = experiment(variant, "tiny", moments=2, seed=1, steps=4)
    assert [trial.said for trial in trials if not trial.ok] == []
    assert sum(trial.kills > 0 for trial in trials) >= 1, "both trials had ended before they were killed"
