"""What a resume may differ in."""

from __future__ import annotations

import json

import pytest
from omegaconf import OmegaConf

from trinity_core.config.plain import to_plain
from trinity_core.errors import ConfigError
from trinity_core.run.resume import asked_for, compare, differences, expand
from trinity_core.testing.fakes import config_for

FAKE = ["model=fake", "backend=fake", "engine=fake"]


def saved(tmp_path, *words: str):
    """A run folder as a run of these words left it."""
    (tmp_path / "words.json").write_text(json.dumps({"id": "r", "words": [*FAKE, *words]}))
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(to_plain(config_for(*words)))))
    return tmp_path


def resume(folder, *now: str) -> None:
    words = expand([f"resume={folder}", *now])
    compare(config_for(*[word for word in words if word not in FAKE]), folder, words)


def test_a_word_typed_in_one_resume_does_not_stop_the_next(tmp_path):
    folder = saved(tmp_path, "steps=40")
    resume(folder, "steps=80")
    # died after its words were written and before its config was
    (folder / "words.json").write_text(json.dumps({"id": "r", "words": [*FAKE, "steps=40", "steps=80"]}))
    resume(folder)


@pytest.mark.parametrize(
    "word", ["tracker=[jsonl]", "algorithm=rloo", "operator=[dynamic_sampling]", "loss=importance_sampling"]
)
def test_a_typed_group_covers_all_that_it_selects(tmp_path, word):
    resume(saved(tmp_path), word)


def test_a_changed_default_is_nobodys_word(tmp_path):
    folder = saved(tmp_path)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("clip_low: 0.2", "clip_low: 0.1"))
    with pytest.raises(ConfigError, match=r"loss\.clip_low was 0\.1 and is now 0\.2, and nobody typed that"):
        resume(folder)
    resume(folder, "resume_config=new")
    resume(folder, "loss.clip_low=0.2")


def test_what_a_run_keeps_for_life_is_refused_even_when_typed(tmp_path):
    with pytest.raises(ConfigError, match="seed was 0 and is now 7; a run keeps it for life"):
        resume(saved(tmp_path), "seed=7")


def test_an_added_slot_is_asked_for():
    assert "eval.tasksets.x" in asked_for(["+taskset@eval.tasksets.x=numbers"], [])


def test_differences_name_leaves():
    assert list(differences({"a": {"b": 1, "c": (1, 2)}}, {"a": {"b": 2, "c": [1, 2], "d": None}})) == [("a.b", 1, 2)]
