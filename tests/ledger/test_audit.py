"""The audit finds every planted fault, and nothing in a run that went well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trinity_core.builtins.buffers.memory import MemoryBuffer
from trinity_core.builtins.buffers.sql import SQLBuffer
from trinity_core.config.schema import Sync
from trinity_core.errors import LedgerError, RunError
from trinity_core.protocols import Event, Position
from trinity_core.run.audit import Limits, audit, audit_events
from trinity_core.testing.contracts._support import BareRun, small_group
from trinity_core.types import Entry

LIMITS = Limits(max_uses=1, groups_per_step=2, sync=Sync())


def history(*lines: str, lineage: int = 1) -> list[Event]:
    """``"put a 0"``, ``"leased a 1 owner"``: event, group, step, owner."""
    events = [Event(1, "", "lineage", 0, 1)]
    for line in lines:
        event, group, step, *owner = line.split()
        if event == "lineage":
            lineage += 1
        events.append(
            Event(len(events) + 1, group.strip("-"), event, int(step), lineage, owner=owner[0] if owner else "")
        )
    return events


def entries(**uses: int) -> list[Entry]:
    return [Entry(id, draw, 0, count, 0.5, "kit", draw) for draw, (id, count) in enumerate(uses.items())]


GOOD = ["put a 0", "put b 0", "leased a 1 t", "leased b 1 t", "committed a 1 t", "committed b 1 t"]


def test_a_run_that_went_well_is_clean():
    report = audit_events(history(*GOOD), entries(a=1, b=1), LIMITS)
    assert report.clean, report.problems
    assert (report.steps, report.lineages, report.groups) == (1, 1, {"committed": 2})
    assert report.text().endswith("audit: clean")


@pytest.mark.parametrize(
    ("lines", "uses", "said"),
    [
        (["leased a 1 t"], {}, "group a was leased while it was never put"),
        (["put a 0", "committed a 1 t"], {"a": 1}, "group a was committed without a lease"),
        (["put a 0", "leased a 1 t", "committed a 1 u"], {"a": 1}, "group a was committed by u while t held it"),
        (["put a 0", "leased a 1 t", "leased a 1 u"], {"a": 0}, "group a was leased to u while t held it"),
        (["put a 0", "leased a 1 t", "committed a 2 t"], {"a": 1}, "leased for step 1 and committed for 2"),
        ([*GOOD, "leased a 2 t"], {"a": 1, "b": 1}, "group a was leased after 1 uses"),
        ([*GOOD, "leased a 1 t", "committed a 1 t"], {"a": 2, "b": 1}, "group a was committed twice for step 1"),
        ([*GOOD, "leased a 2 t", "committed a 2 t"], {"a": 2, "b": 1}, "group a was used 2 times"),
        (["put a 0", "expired a 1", "leased a 1 t", "committed a 1 t"], {"a": 1}, "leased while it was expired"),
        (["put a 0", "leased a 1 t", "expired a 1"], {"a": 0}, "group a expired while it was leased"),
        (["put a 0", "leased a 1 t", "voided a 1"], {"a": 0}, "group a was voided while t held it"),
        (["put a 0", "released a 1 t"], {"a": 0}, "released by t, who did not hold it"),
        (["put a 0", "put a 0"], {"a": 0}, "group a was put while it was available"),
        (["put a 0"], {}, "group a was put and is gone"),
        ([], {"a": 0}, "group a is there and was never put"),
        (GOOD, {"a": 1, "b": 0}, "group b: the history counts 1 uses, the ledger 0"),
        (["put a 0", "leased a 1 t", "committed a 1 t"], {"a": 1}, "step 1: 1 groups instead of 2"),
        (["put a 0", "leased a 2 t", "committed a 2 t"], {"a": 1}, "step 1: no surviving commit"),
        ([*GOOD, "put c 0", "leased c 2 t", "committed c 2 t"], {"a": 1, "b": 1, "c": 1}, "group c of version 0"),
        (["mangled a 1"], {}, "'mangled' is no event of a ledger"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(lines, uses, said):
    report = audit_events(history(*lines), entries(**uses), LIMITS)
    assert any(said in problem for problem in report.problems), report.problems


def test_a_write_of_an_older_lineage_is_found():
    events = history("put a 0", "lineage - 0", "put b 0")
    assert audit_events(events, entries(a=0, b=0)).clean
    events[-1] = replace(events[-1], lineage=1)
    (problem,) = audit_events(events, entries(a=0, b=0)).problems
    assert "put by lineage 1 while 2 was live" in problem


def test_a_gap_in_the_history_is_found():
    events = history(*GOOD)
    del events[3]
    assert any("events 4 to 4 are missing" in problem for problem in audit_events(events, entries(a=1, b=1)).problems)


def test_an_empty_history_is_not_clean():
    assert audit_events([], []).problems == ["the history is empty: nothing was checked"]


def test_training_on_a_version_that_did_not_survive_is_a_fault():
    again = ["leased a 1 t", "leased b 1 t", "committed a 1 t", "committed b 1 t"]
    # version 1 of lineage 1 is gone; c was made by it
    lost = [*GOOD, "put c 1", "lineage - 0", *again, "leased c 2 t", "committed c 2 t"]
    report = audit_events(history(*lost), entries(a=1, b=1, c=1))
    (problem,) = report.problems
    assert "c was trained by step 2, and its version 1 did not survive lineage 2" in problem
    # the same group, made again by version 1 of lineage 2, is fine
    anew = [*GOOD, "put c 1", "lineage - 0", "voided c 0", *again, "put c 1", "leased c 2 t", "committed c 2 t"]
    assert audit_events(history(*anew), entries(a=1, b=1, c=1)).clean


def test_a_resume_undoes_later_commits_and_expiries():
    lines = [*GOOD, "put c 1", "put d 0", "expired d 2", "lineage - 0", "leased a 1 t", "leased d 1 t"]
    lines += ["committed a 1 t", "committed d 1 t"]
    report = audit_events(history(*lines), entries(a=1, b=0, c=0, d=1), Limits(groups_per_step=2))
    assert report.clean, report.problems
    assert report.groups == {"committed": 2, "available": 2}


def test_a_short_step_is_fine_when_it_is_recorded():
    lines = ["put a 0", "given_up - 1", "leased a 1 t", "committed a 1 t"]
    assert audit_events(history(*lines), entries(a=1), LIMITS).clean


@pytest.mark.parametrize(
    ("sync", "version", "step", "fine"),
    [
        # ordered: last step (from 0) of version v is interval * (v // interval) + interval - 1 + offset
        (Sync(), 3, 4, True),
        (Sync(), 3, 5, False),
        (Sync(interval=2, offset=1), 2, 5, True),
        (Sync(interval=2, offset=1), 2, 6, False),
        # asynchronous: step - 1 - version <= max_staleness
        (Sync(mode="async", max_staleness=2), 3, 6, True),
        (Sync(mode="async", max_staleness=2), 3, 7, False),
    ],
)
def test_staleness_is_held_against_the_config(sync, version, step, fine):
    lines = [f"put a {version}", f"leased a {step} t", f"committed a {step} t"]
    problems = audit_events(history(*lines), entries(a=1), Limits(sync=sync)).problems
    assert any("the last step allowed" in problem for problem in problems) is not fine


def _run(folder: Path, buffer: str = "{name: sql, url: null, password_env: null, timeout_s: 5.0}") -> None:
    (folder / "words.json").write_text('{"id": "r1", "words": []}')
    (folder / "config.yaml").write_text(f"buffer: {buffer}\ngroups_per_step: 2\ntrainer: {{max_uses: 1}}\n")


def test_a_run_folder_is_audited_against_its_own_config(tmp_path):
    _run(tmp_path)
    ledger = SQLBuffer().open(BareRun(tmp_path, "r1"))
    ledger.begin(None, ordered=True)
    for step in (1, 2, 3):
        ids = []
        for opening in ledger.enter("x", 2, 100, version=step - 1, ttl_s=9):
            group = small_group("r1", opening.draw, version=step - 1)
            ledger.put(group, place=opening.place)
            ids.append(group.id)
        ledger.commit(ledger.lease(ids, owner="t", step=step, ttl_s=9), step)
        if step == 2:
            ledger.begin(Position(1, 2, 0), ordered=True)
            break
    report = audit(tmp_path)
    assert report.clean, report.problems
    assert (report.steps, report.lineages, report.groups) == (1, 2, {"committed": 2, "voided": 2})


def test_a_memory_ledger_cannot_be_audited(tmp_path):
    assert MemoryBuffer.shared is False
    _run(tmp_path, "{name: memory}")
    with pytest.raises(LedgerError, match="leaves nothing on disk"):
        audit(tmp_path)


def test_what_is_no_run_folder_says_so(tmp_path):
    with pytest.raises(RunError, match="is not a run folder"):
        audit(tmp_path)
    _run(tmp_path)
    with pytest.raises(LedgerError, match="no such file"):
        audit(tmp_path)
