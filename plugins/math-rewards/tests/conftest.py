from __future__ import annotations

from pathlib import Path

import pytest

PLACES = [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]


@pytest.fixture
def data() -> Path:
    """The folder of full data sets beside the checkout."""
    found = next((place for place in PLACES if place.is_dir()), None)
    if found is None:
        pytest.skip("no folder shared/data beside the checkout: the full data sets are not part of the repository")
    return found
