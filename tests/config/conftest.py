import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the stand-ins are named by import string: stand_ins:Clip


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """Outside any project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
    return tmp_path
