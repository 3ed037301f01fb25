"""Every ledger that ships keeps the contract of ledgers."""

from __future__ import annotations

import pytest

from trinity_core.testing.contracts.buffer import RULES
from trinity_core.testing.rules import NotApplicable


@pytest.mark.parametrize("rule", RULES)
def test_the_contract(buffer, rule, tmp_path):
    try:
        RULES[rule](buffer, tmp_path)
    except NotApplicable as reason:
        pytest.skip(str(reason))
