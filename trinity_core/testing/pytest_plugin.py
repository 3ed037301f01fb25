"""``pytest --trinity-conformance=NAME``: run the kit against a plugin or one component.

Loaded at the start of every pytest run on a machine with trinity-core, so it imports pytest and nothing else; all that
costs time happens in :mod:`trinity_core.testing.kit`, and only when the option is given.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

KIT = Path(__file__).with_name("kit.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trinity", "Trinity plugin conformance")
    group.addoption(
        "--trinity-conformance",
        metavar="NAME",
        help="check NAME against the contracts of its kinds: a plugin, a distribution, 'builtins', or module:Class with --kind",
    )
    group.addoption(
        "--kind", metavar="KIND", dest="trinity_kind", help="kind of the module:Class given to --trinity-conformance"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("trinity_conformance") is not None:
        config.args[:] = [str(KIT)]
        # the kit lives where packages are installed, which pytest passes over by default
        config.option.collect_in_virtualenv = True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """After everything else that is said, so that the last line is the one that counts."""
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and session.config.getoption("trinity_conformance") is not None:
        from trinity_core.testing.kit import closing_lines

        for line in closing_lines(reporter.stats):
            reporter.write_line(line)
    return result
