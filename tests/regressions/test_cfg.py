"""Configuration and installation: what is refused, what is said, and what is never written."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from small_runs import FAKE, run

from trinity_core.commands.doctor import versions
from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.errors import ConfigError
from trinity_core.run.joining import join_config
from trinity_core.run.resume import expand
from trinity_core.testing.fakes import config_for

ROOT = Path(__file__).parents[2]

# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [("sync.mode=async", "sync.max_staleness=2"), ("sync.offset=1",), ("sync.interval=2",)],
    ids=lambda words: words[-1],
)
def test_stale_data_without_a_correction_needs_a_word_for_it(words):
    """LPM-05: learning from an older policy uncorrected is a choice that somebody made, never a default."""
    with pytest.raises(ConfigError) as refused:
        config_for(*words)
    ways_on = [line.strip() for line in str(refused.value).splitlines()[1:]]
    assert ways_on == ["correction=[truncated_is]", "sync.uncorrected=true"]
    for way in ways_on:
        config_for(*words, way)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("backend.freze_embeddings=true", "freze_embeddings"),
        ("+backend.freze_embeddings=true", "backend.freze_embeddings"),
        ("+optim.freeze=all", "optim.freeze"),
        ("model.lora={rnk: 4}", "model.lora.rnk"),
    ],
)
def test_an_unknown_key_is_never_ignored(word, said):
    """WGT-06: a misspelled key that should have frozen something is an error, however it is written."""
    words = ["model.path=/no/such/model", word]
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        check(compose(words))


# --- the code that runs -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """A trainer's folder to join."""
    folder = tmp_path_factory.mktemp("join") / "run"
    run(*FAKE, "buffer=sql", "steps=1", f"out={folder}")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("\nmode: both\n", "\nmode: train\n"))
    return folder


def join(folder):
    """Whether an explorer that joins ``folder`` gets as far as playing."""
    words = expand([f"join={folder}", "mode=explore"])
    reached = []

    async def explore(run, root):
        reached.append(run.id)
        return {}

    asyncio.run(join_config(check(compose(words)), words, explore))
    return bool(reached)


@pytest.mark.parametrize(
    ("what", "name", "message"),
    [("plugins", "builtins", "plugin builtins"), ("modules", "run_parts", "module run_parts")],
)
def test_a_worker_with_other_code_is_refused(joined, what, name, message):
    """CFG-08: name, version and hash of every plugin and module in use are compared before a worker plays."""
    assert join(joined)
    file = joined / "manifest.json"
    kept = file.read_text()
    manifest = json.loads(kept)
    found = manifest[what][name]
    manifest[what][name] = {**found, "sha256": "0" * 64} if isinstance(found, dict) else "0" * 64
    file.write_text(json.dumps(manifest))
    try:
        with pytest.raises(ConfigError, match=f"{message} is .* Install the same version"):
            join(joined)
    finally:
        file.write_text(kept)


# --- what is installed ------------------------------------------------------------------------------------------------


def projects():
    return {path.parent.name: tomllib.loads(path.read_text())["project"] for path in [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]}  # fmt: skip


def requirements():
    for name, project in projects().items():
        extras = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
        for line in [*project["dependencies"], *extras]:
            yield name, Requirement(line)


def test_ranges_in_the_packages_exact_versions_in_one_file():
    """CFG-07: what is installed beside this project decides; what it was tested with stands in constraints.txt."""
    tested = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    tested = {canonicalize_name(name): version.split()[0] for name, version in tested.items()}
    for project, need in requirements():
        operators = {part.operator for part in need.specifier}
        assert ">=" in operators and not operators & {"==", "==="}, f"{project}: {need}"
        if not need.name.startswith("trinity-") and canonicalize_name(need.name) in tested:
            assert need.specifier.contains(tested[canonicalize_name(need.name)]), f"{project}: {need}"
    core = {canonicalize_name(Requirement(line).name) for line in projects()[ROOT.name]["dependencies"]}
    assert core <= set(tested), core - set(tested)


def test_the_core_needs_no_gpu_library():
    """CFG-06: torch and what stands on it are extras."""
    needs = [Requirement(line) for line in metadata.requires("trinity-core")]
    plain = {need.name for need in needs if need.marker is None}
    extras = {need.name for need in needs if need.marker is not None}
    assert not plain & {"torch", "transformers", "peft", "vllm", "flash-attn", "ray", "deepspeed"}
    assert {"torch", "transformers"} <= extras


def test_the_doctor_prints_version_conflicts(tmp_path, monkeypatch):
    """CFG-06: an installed plugin that asks for another version of a library than there is, or for one that is missing."""
    folder = tmp_path / "trinity_plugin_stale-1.0.dist-info"
    folder.mkdir()
    lines = ("Metadata-Version: 2.1", "Name: trinity-plugin-stale", "Version: 1.0", "Requires-Dist: numpy<1",
             "Requires-Dist: nowhere-to-be-found>=2", "Requires-Dist: pluggy>=1")  # fmt: skip
    (folder / "METADATA").write_text("\n".join(lines) + "\n")
    before = [text for state, text in versions() if state == "wrong"]
    monkeypatch.syspath_prepend(str(tmp_path))
    wrong = [text for state, text in versions() if state == "wrong" and text not in before]
    have = metadata.version("numpy")
    assert wrong == [
        f"trinity-plugin-stale needs numpy<1, {have} is installed: pip install 'numpy<1'",
        "trinity-plugin-stale needs nowhere-to-be-found>=2, which is not installed: pip install 'nowhere-to-be-found>=2'",
    ]


WATCHED = """
import os, sys
written = open(sys.argv.pop(1), "a")
def watch(event, args):
    path = None
    if event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
        mode, flags = args[1], args[2]
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            path = args[0]
    elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink", "shutil.copyfile"):
        path = args[1] if event in ("os.rename", "os.link", "os.symlink", "shutil.copyfile") else args[0]
    if path is not None:
        os.write(written.fileno(), (os.path.abspath(os.fsdecode(path)) + "\\n").encode())
sys.addaudithook(watch)
from trinity_core.cli import main
sys.exit(main())
"""


@pytest.mark.slow
def test_nothing_is_written_where_packages_are_installed(tmp_path):
    """CFG-09: a run, a new plugin and a look at what is installed write into the user's folders and nowhere else."""
    log = tmp_path / "written.txt"
    home = tmp_path / "home"
    work = tmp_path / "work"
    for folder in (home, work, tmp_path / "tmp"):
        folder.mkdir()
    environment = os.environ | {
        "HOME": str(home),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    for words in (("plugins",), ("new", "mine", "--kind", "reward"), ("run", *FAKE, "steps=1", "out=run")):
        done = subprocess.run([sys.executable, "-c", WATCHED, str(log), *words], cwd=work, env=environment, text=True, capture_output=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    written = {Path(line) for line in log.read_text().splitlines()}
    assert work / "run" / "metrics.jsonl" in written, "the watch sees what is written"
    elsewhere = [path for path in written if not path.is_relative_to(tmp_path) and path.parts[1] not in ("dev", "proc")]
    assert not elsewhere
