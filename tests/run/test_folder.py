"""The run folder."""

from __future__ import annotations

import pytest

from trinity_core.errors import ConfigError, RunError
from trinity_core.run.folder import RunFolder, read_json, write_json


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty.*resume="):
        RunFolder.create(tmp_path)
    assert (tmp_path / "note.txt").read_text() == "mine"


def test_two_runs_of_one_second_get_two_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [RunFolder.create(None) for _ in range(5)]
    assert len({folder.path for folder in folders}) == 5
    for folder in folders:
        folder.close()


def test_a_folder_is_held_by_one_run_at_a_time(tmp_path):
    first = RunFolder.create(tmp_path / "run")
    write_json(first.path / "words.json", {"id": "a", "words": []})
    with pytest.raises(RunError, match="another process runs in this folder"):
        RunFolder.existing(first.path)
    first.close()
    RunFolder.existing(first.path).close()


def test_a_folder_that_is_no_run_cannot_be_resumed(tmp_path):
    with pytest.raises(ConfigError, match=r"resume=.*not a run folder"):
        RunFolder.existing(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "words.json").write_text("{")
    with pytest.raises(RunError, match=r"words\.json: what was typed is damaged"):
        read_json(tmp_path / "words.json", "what was typed")
