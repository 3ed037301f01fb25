from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
"""Full data sets beside the checkout, where there are any."""


@pytest.fixture
def data() -> Path:
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is not there: the full data sets are not part of the repository")
    return DATA
