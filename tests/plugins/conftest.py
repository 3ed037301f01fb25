"""Plugins made of a dist-info folder and a module, seen by a fresh process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = """
from trinity_core import hookimpl
@hookimpl
def trinity_rewards():
    return {"good": "good_rewards:Good"}
"""


class Site:
    """A folder that stands for an environment's site-packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self, name: str, source: str, *, module: str | None = None, requires: str = "trinity-core", version: str = "1.0"
    ) -> None:
        """Install the distribution ``trinity-plugin-<name>`` whose plugin module holds ``source``."""
        module = module or f"plugin_{name.replace('-', '_')}"
        (self.folder / f"{module}.py").write_text(source)
        info = self.folder / f"trinity_plugin_{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = [
            "Metadata-Version: 2.1",
            f"Name: trinity-plugin-{name}",
            f"Version: {version}",
            f"Requires-Dist: {requires}",
            "",
        ]
        (info / "METADATA").write_text("\n".join(lines))
        (info / "entry_points.txt").write_text(f"[trinity]\n{name} = {module}\n")

    def write(self, path: str, text: str) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def python(self, code: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self._run([sys.executable, "-c", code], env)

    def trinity(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self._run([sys.executable, "-m", "trinity_core.cli", *words], env)

    def plugins(self, **env: str) -> dict[str, dict]:
        """What discovery found, by plugin."""
        code = (
            "import json, dataclasses; from trinity_core.plugins import plugins\n"
            "print(json.dumps({i.name: dataclasses.asdict(i) for i in plugins()}))"
        )
        done = self.python(code, **env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def _run(self, command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.folder), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TRINITY_")}
        return subprocess.run(
            command,
            text=True,
            capture_output=True,
            cwd=self.folder,
            env=clean | {"PYTHONPATH": path} | env,
            timeout=120,
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    return Site(folder)


@pytest.fixture
def with_good(site: Site) -> Site:
    """A healthy plugin beside the one under test: it must go on working."""
    site.add("good", GOOD)
    site.write(
        "good_rewards.py",
        "from dataclasses import dataclass\nfrom trinity_core.protocols import Reward\n"
        "@dataclass(frozen=True)\nclass Good(Reward):\n    def __call__(self, attempt): return 1.0\n",
    )
    return site
