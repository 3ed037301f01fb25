"""``local`` and ``hf`` pass the contracts that every backend and engine passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.engines.hf import HF
from trinity_core.testing.contracts import backend, engine


@pytest.mark.parametrize("rule", engine.RULES.values(), ids=engine.RULES.keys())
def test_engine(rule: Callable[..., None], tmp_path: Path) -> None:
    rule(HF(), tmp_path)


@pytest.mark.parametrize("share", [True, False], ids=["shared", "plain"])
@pytest.mark.parametrize("rule", backend.RULES.values(), ids=backend.RULES.keys())
def test_backend(rule: Callable[..., None], share: bool, tmp_path: Path) -> None:
    rule(Local(share_prefix=share), tmp_path)
