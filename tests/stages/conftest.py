import sys

import pytest

RECIPES = {
    "two/first": "defaults: [fake, {override /tracker: [jsonl]}]\nsteps: 4\ngroups_per_step: 2\ncheckpoint: {every: 2}\n",
    "two/second": (
        "defaults: [fake, {override /tracker: [jsonl]}, {override /algorithm: rloo}]\n"
        "steps: 5\ngroups_per_step: 2\ncheckpoint: {every: 2}\n"
    ),
    "both": "stages: [two/first, two/second]\nover: {2: [steps=6]}\nseed: 3\noptim: {lr: 0.5}\n",
    "elsewhere": "defaults: [{override /tracker: [jsonl]}, {override /algorithm: is_ppo}]\n",
}
"""Two recipes of the table policy, a run of both, and one of another model."""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with these recipes, and the current folder; the import path as it was comes back."""
    for name, body in RECIPES.items():
        file = tmp_path / "conf" / "recipe" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# @package _global_\n{body}")
    (tmp_path / "conf" / ".trinity").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path
