import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trinity(tmp_path):
    """Run the command in an empty folder; ``code=`` runs Python instead."""

    def run(*words: str, code: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *(("-c", code) if code else ("-m", "trinity_core.cli", *words))]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TRINITY_")}
        clean["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(command, text=True, capture_output=True, cwd=tmp_path, env=clean | env, timeout=200)

    return run
