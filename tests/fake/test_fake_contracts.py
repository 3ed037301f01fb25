"""The fake backend and engine pass the contracts that every backend and engine passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from trinity_core.builtins.backends.fake import Fake
from trinity_core.builtins.engines.fake import FakeEngine
from trinity_core.testing.contracts import backend, engine


@pytest.mark.parametrize("rule", engine.RULES.values(), ids=engine.RULES.keys())
def test_engine(rule, tmp_path: Path):
    rule(FakeEngine(), tmp_path)


@pytest.mark.parametrize("two_pass", [False, True], ids=["direct", "two-pass"])
@pytest.mark.parametrize("rule", backend.RULES.values(), ids=backend.RULES.keys())
def test_backend(rule, two_pass: bool, tmp_path: Path):
    rule(Fake(two_pass=two_pass), tmp_path)
