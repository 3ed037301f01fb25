"""The conformance kit: every rule of the contracts, asked of every component of one plugin.

Collected by :mod:`trinity_core.testing.pytest_plugin` alone; needs no test file. One rule asked of one component is one
test, so a report reads ``loss/ppo: gradient agrees with finite differences``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from trinity_core.errors import TrinityError
from trinity_core.kinds import CONFIG_KINDS, KINDS
from trinity_core.testing.contracts import common, plugin_module
from trinity_core.testing.rules import NotApplicable
from trinity_core.testing.subject import Subject, contract, instance

USABLE = ("ok", "slow")
"""States of a plugin whose components can be used."""
NOT_APPLICABLE = "not applicable: "


def subjects(name: str, kind: str | None = None) -> list[Subject]:
    """The components that ``name`` stands for: one of an import string, or all of a plugin or distribution."""
    from trinity_core.config.project import activate, find_project
    from trinity_core.plugins import catalog, plugins

    if ":" in name:
        if kind not in CONFIG_KINDS:
            raise TrinityError(
                f"--trinity-conformance={name}: say what it is with --kind KIND. Kinds: {', '.join(CONFIG_KINDS)}"
            )
        activate(find_project())  # `pytest` alone has neither the project nor the current folder on its path
        return [Subject(kind, name)]
    known = {info.name: info for info in plugins()}
    by_distribution = {info.distribution: info for info in plugins() if info.distribution}
    info = known.get(name) or by_distribution.get(name)
    if info is None:
        names = ", ".join(sorted({*known, *by_distribution}))
        raise TrinityError(
            f"--trinity-conformance={name}: no such plugin. Installed: {names}. One component: module:Class --kind KIND"
        )
    if info.status not in USABLE:
        raise TrinityError(
            f"--trinity-conformance={name}: the plugin does not load ({info.status}). {'; '.join(info.problems)}"
        )
    return [
        Subject(kind_name, component, info.name)
        for kind_name in KINDS
        for component, registration in catalog(kind_name).items()
        if registration.plugin == info.name
    ]


def call_rule(rule: Callable[..., Any], component: Any, tmp: Path) -> None:
    """Ask one rule of a kind: ``rule(component)`` or ``rule(component, tmp)``, plain or async."""
    wants_folder = len(inspect.signature(rule).parameters) > 1
    answer = rule(component, tmp) if wants_folder else rule(component)
    if inspect.isawaitable(answer):

        async def ask() -> None:
            await answer

        asyncio.run(ask())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each rule and component."""
    if "asked" not in metafunc.fixturenames:
        return
    name, kind = metafunc.config.getoption("trinity_conformance"), metafunc.config.getoption("trinity_kind")
    try:
        found = subjects(name, kind)
    except TrinityError as error:
        metafunc.parametrize("asked", [str(error)], ids=[f"{name}: can be found"])
        return
    cases: list[tuple[str, Any]] = []
    for plugin in sorted({subject.plugin for subject in found if subject.plugin}):
        cases += [(f"{plugin}: {words}", (rule, plugin)) for words, rule in plugin_module.RULES.items()]
    for subject in found:
        label = f"{subject.kind}/{subject.name}"
        cases += [(f"{label}: {words}", (rule, subject)) for words, rule in common.RULES.items()]
        own = {w: rule for w, rule in getattr(contract(subject.kind), "RULES", {}).items() if w not in common.RULES}
        cases += [(f"{label}: {words}", (rule, subject, "own")) for words, rule in own.items()]
        if not own and subject.kind in CONFIG_KINDS:
            cases.append(
                (f"{label}: has a contract", f"no contract exists for kind {subject.kind!r}, so nothing was checked")
            )
    if not found:
        cases.append((f"{name}: has a component", f"{name} registers no component, so nothing was checked"))
    metafunc.parametrize("asked", [case for _, case in cases], ids=[words for words, _ in cases])


def test_rule(asked: Any, tmp_path: Path) -> None:
    """Ask one rule; a string is a failure found while collecting."""
    if isinstance(asked, str):
        pytest.fail(asked, pytrace=False)
    rule, subject, *own = asked
    try:
        if own:
            call_rule(rule, instance(subject, tmp_path), tmp_path)
        elif isinstance(subject, Subject):
            rule(subject, tmp_path)
        else:
            rule(subject)
    except NotApplicable as reason:
        if not str(reason):
            pytest.fail("a rule that does not apply must say why", pytrace=False)
        pytest.skip(NOT_APPLICABLE + str(reason))
    except (AssertionError, TrinityError) as broken:
        if not str(broken):
            raise  # a bare assert: its line is all there is to show
        raise pytest.fail.Exception(str(broken), pytrace=False) from None


def closing_lines(stats: Mapping[str, Sequence[Any]]) -> list[str]:
    """What was checked: failures by component, why rules did not apply, and the one line that counts everything."""
    reports = {
        word: [r for r in stats.get(word, ()) if "::test_rule[" in getattr(r, "nodeid", "")]
        for word in ("passed", "failed", "skipped", "error")
    }
    everything = [report for found in reports.values() for report in found]
    components = {label for report in everything if "/" in (label := _label(report.nodeid))}
    reasons: dict[str, int] = {}
    for report in reports["skipped"]:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = text.removeprefix("Skipped: ").removeprefix(NOT_APPLICABLE)
        reasons[reason] = reasons.get(reason, 0) + 1
    lines = [
        f"not applicable ({count}): {reason}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1])
    ]
    failed = len(reports["failed"]) + len(reports["error"])
    counted = [
        f"{len(components)} component{'s' * (len(components) != 1)}",
        f"{len(everything)} rules",
        f"{len(reports['passed'])} passed",
        *([f"{failed} failed"] if failed else []),
        f"{len(reports['skipped'])} not applicable",
    ]
    return [*lines, f"trinity conformance: {', '.join(counted)}"]


def _label(nodeid: str) -> str:
    """``loss/ppo`` of ``…kit.py::test_rule[loss/ppo: pickles]``; an import string keeps its single colon."""
    return nodeid.partition("[")[2].split(": ")[0]
