"""``trinity new``: a package of every kind, complete, loadable, and never over something that exists."""

import subprocess
import sys
import tomllib

import pytest

from trinity_core.commands.new import KINDS, make
from trinity_core.errors import ConfigError

pytestmark = pytest.mark.slow  # whole processes, one after the other

ROOT_FILES = ["pyproject.toml", "README.md", ".gitignore"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_is_complete(tmp_path, kind):
    root = make("my-thing", kind, tmp_path)
    assert root == tmp_path / "trinity-plugin-my-thing"
    source = root / "src" / "trinity_my_thing"
    expected = [root / name for name in ROOT_FILES]
    expected += [source / "plugin.py", source / "my_thing.py", source / "conf" / kind / "my_thing.yaml"]
    expected += [root / "tests" / "test_my_thing.py"]
    for file in expected:
        assert file.is_file(), file
        assert "{{" not in file.read_text(), file
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert project["name"] == "trinity-plugin-my-thing"
    assert project["entry-points"]["trinity"] == {"my-thing": "trinity_my_thing.plugin"}
    assert len((source / "plugin.py").read_text().splitlines()) < 60


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_tests_pass(tmp_path, kind):
    root = make("my-thing", kind, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=root,
        env={**__import__("os").environ, "PYTHONPATH": str(root / "src")},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["length-bonus", "length_bonus", "trinity-plugin-length-bonus"])
def test_every_spelling_of_a_name_gives_one_package(tmp_path, name):
    assert make(name, "reward", tmp_path).name == "trinity-plugin-length-bonus"


def test_nothing_is_overwritten(tmp_path):
    root = make("mine", "reward", tmp_path)
    before = (root / "pyproject.toml").read_text()
    (root / "pyproject.toml").write_text(before + "# mine now\n")
    with pytest.raises(ConfigError, match="exists and is left as it is"):
        make("mine", "loss", tmp_path)
    assert (root / "pyproject.toml").read_text().endswith("# mine now\n")


@pytest.mark.parametrize("name", ["", "Mine", "9lives", "a b", "-x", "x--y", "class"])
def test_a_name_that_no_package_can_have_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="is no name for a package"):
        make(name, "reward", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_what_to_do_next(trinity, tmp_path):
    done = trinity("new", "mine", "--kind", "reward")
    assert done.returncode == 0
    assert "pip install -e" in done.stdout
    assert "pytest --trinity-conformance=mine" in done.stdout
    assert "trinity run recipe=fake 'reward=[mine]'" in done.stdout
