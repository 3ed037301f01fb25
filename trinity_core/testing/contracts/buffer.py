"""What every ledger keeps: groups come back as they were, each is used exactly once, whoever dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trinity_core.errors import Fenced, LeaseLost, LedgerError
from trinity_core.protocols import Buffer, Ledger, Position
from trinity_core.testing.contracts._resumes import (
    a_resume_finds_the_draws_that_the_one_before_kept,
    a_resume_plays_again_what_the_checkpoint_has_not_seen,
    a_resume_trains_nothing_of_versions_that_did_not_survive,
    a_short_step_is_short_only_in_what_survived,
)
from trinity_core.testing.contracts._support import TTL_S, BareRun, fill, open_new, rich_group, same, small_group
from trinity_core.testing.rules import NotApplicable, require

SHORT_S = 0.3
STEP_SIZE = 4


def _refused(error: type[LedgerError], action: Callable[[], Any], what: str) -> None:
    try:
        action()
    except error:
        return
    raise AssertionError(f"{what}: must raise {error.__name__}")


def a_group_comes_back_as_it_was(buffer: Buffer, tmp: Path) -> None:
    ledger, run = open_new(buffer, tmp)
    group, other = rich_group(run.id), small_group(run.id, 7, version=None)
    ledger.put(group)
    ledger.put(other)
    back = ledger.read([other.id, group.id])
    require(same(back, [other, group]), "read must give the groups that were put, in the order asked for")
    entries = {entry.id: entry for entry in ledger.index()}
    require(entries[group.id].version == 3, "an entry's version is the oldest one in the group")
    require(entries[group.id].reward == 0.25, "an entry's reward is the mean over sampled attempts with an Ok score")
    require(entries[other.id].version is None, "nothing was sampled, so there is no version")
    _refused(LedgerError, lambda: ledger.read([run.id + "/nobody"]), "reading an unknown group")
    ledger.close()


def a_second_put_changes_nothing(buffer: Buffer, tmp: Path) -> None:
    ledger, run = open_new(buffer, tmp)
    require(ledger.put(small_group(run.id, 0, reward=0.25)) is True, "the first put stores")
    require(ledger.put(small_group(run.id, 0, reward=0.75)) is False, "the second put of an id is answered by False")
    (entry,) = ledger.index()
    require(entry.reward == 0.25 and ledger.taken() == 1, "the first group stays, and takes one place")
    ledger.close()


def groups_put_together_are_as_if_put_one_by_one(buffer: Buffer, tmp: Path) -> None:
    ledger, run = open_new(buffer, tmp)
    (gone,) = ledger.enter("slow", 1, 10, version=0, ttl_s=0.01)
    time.sleep(0.05)
    first, second = ledger.enter("quick", 2, 10, version=0, ttl_s=TTL_S)
    groups = [small_group(run.id, draw) for draw in (first.draw, gone.draw, second.draw, second.draw, 40)]
    places = [first.place, gone.place, second.place, second.place, None]
    answers = ledger.put_all(list(zip(groups, places)))
    require(isinstance(answers[1], LeaseLost), f"what came too late is answered by LeaseLost, got {answers[1]!r}")
    require([*answers[:1], *answers[2:]] == [True, True, False, True], f"the others as put answers, got {answers}")
    require([entry.draw for entry in ledger.index()] == [first.draw, second.draw, 40], "and all others are stored")
    require((ledger.taken(), ledger.in_flight()) == (3, 0), "each in its place")
    events = [event.event for event in ledger.events() if event.group]
    require(events == ["put", "voided", "put", "put"], f"the history tells it in their order, got {events}")
    require(ledger.put_all([]) == [], "nothing is put where there is nothing")
    ledger.close()


def groups_are_listed_by_draw_while_they_can_be_leased(buffer: Buffer, tmp: Path) -> None:
    ledger, run = open_new(buffer, tmp)
    for draw in (3, 1, 2, 0):
        ledger.put(small_group(run.id, draw))
    require([entry.draw for entry in ledger.index()] == [0, 1, 2, 3], "order is by draw, whatever arrived first")
    ids = [entry.id for entry in ledger.index()]
    lease = ledger.lease(ids[:1], owner="kit", step=1, ttl_s=TTL_S)
    ledger.expire(ids[1:2], "too old")
    ledger.drop(ids[2], "voided", "broken")
    require([entry.draw for entry in ledger.index()] == [3], "leased, expired and voided groups are not listed")
    require(ledger.taken() == 2, "the expired and the voided group gave their places back")
    ledger.commit(lease, 1)
    require([entry.draw for entry in ledger.index()] == [3], "a used group is not listed")
    require([entry.draw for entry in ledger.index(max_uses=2)] == [0, 3], "with max_uses=2 it is listed once more")
    ledger.close()


def a_lease_takes_all_or_none(buffer: Buffer, tmp: Path) -> None:
    ledger, run = open_new(buffer, tmp)
    a, b, c = fill(ledger, run, 3)
    lease = ledger.lease([a], owner="one", step=1, ttl_s=TTL_S)
    _refused(LedgerError, lambda: ledger.lease([b, a], owner="two", step=1, ttl_s=TTL_S), "leasing a leased group")
    require([entry.id for entry in ledger.index()] == [b, c], "a refused lease takes nothing")
    ledger.release(lease)
    require([entry.id for entry in ledger.index()] == [a, b, c], "released groups are there again")
    _refused(LeaseLost, lambda: ledger.commit(lease, 1), "committing a released lease")
    again = ledger.lease([a, b], owner="one", step=1, ttl_s=TTL_S)
    ledger.commit(again, 1)
    _refused(LeaseLost, lambda: ledger.commit(again, 1), "committing twice")
    _refused(
        LedgerError, lambda: ledger.lease([a], owner="one", step=2, ttl_s=TTL_S), "leasing a group that is used up"
    )
    ledger.close()


def the_gate_counts_places(buffer: Buffer, tmp: Path) -> None:
    ledger, run = open_new(buffer, tmp)
    openings = ledger.enter("kit", 10, 3, version=0, ttl_s=TTL_S)
    require([o.draw for o in openings] == [0, 1, 2], "draws start while taken < limit, numbered from 0")
    require(not ledger.enter("kit", 1, 3, version=0, ttl_s=TTL_S), "the gate is shut")
    ledger.put(small_group(run.id, 0), place=openings[0].place)
    require(ledger.taken() == 3 and ledger.in_flight() == 2, "a place becomes its group's: still taken")
    require(ledger.filled() == 1, "draws in flight have not filled their places")
    ledger.drop(f"{run.id}/000001", "filtered", "no spread", place=openings[1].place)
    ledger.leave(openings[2].place)
    require(ledger.taken() == 1, "filtered and left draws free their places")
    require([o.draw for o in ledger.enter("kit", 9, 2, version=1, ttl_s=TTL_S)] == [3], "numbers go on, never twice")
    ledger.give_up(2, 1, "short")
    require(ledger.taken() == 4, "places given up count as taken")
    require(ledger.filled() == ledger.taken() - ledger.in_flight(), "and as filled")
    require(
        ledger.in_flight(before_version=1) == 0 and ledger.in_flight(before_version=2) == 1, "in flight, by version"
    )
    require(ledger.position(1) == Position(1, 3, 2), "the position lies behind the last draw of an earlier version")
    ledger.close()


def each_group_is_used_once_by_competing_threads(buffer: Buffer, tmp: Path) -> None:
    ledger, run = open_new(buffer, tmp)
    total = 40
    problems: list[BaseException] = []

    def guarded(work: Callable[..., None], *args: Any) -> None:
        try:
            work(ledger, run, *args)
        except BaseException as error:  # noqa: BLE001 - handed to the asserting thread
            problems.append(error)

    explorers = [threading.Thread(target=guarded, args=(_explore, f"explorer-{i}", total)) for i in range(3)]
    trainers = [threading.Thread(target=guarded, args=(_train, f"trainer-{i}", total)) for i in range(2)]
    for thread in explorers + trainers:
        thread.start()
    for thread in explorers + trainers:
        thread.join(60)
    require(not problems, f"no writer may fail: {problems}")
    _each_once(ledger, total)
    ledger.close()


def each_group_is_used_once_by_competing_processes(buffer: Buffer, tmp: Path) -> None:
    _several_processes(buffer)
    ledger, run = open_new(buffer, tmp)
    total = 80
    workers = [_process(buffer, run, work, f"other-{work.__name__}", total) for work in (_explore, _train)]
    _explore(ledger, run, "explorer", total)
    _train(ledger, run, "trainer", total)
    for worker in workers:
        worker.join(60)
    require([worker.exitcode for worker in workers] == [0, 0], "no process may fail")
    _each_once(ledger, total)
    ledger.close()


def what_a_killed_process_held_falls_back(buffer: Buffer, tmp: Path) -> None:
    _several_processes(buffer)
    ledger, run = open_new(buffer, tmp)
    ids = fill(ledger, run, 3)
    worker = _process(buffer, run, _hold, ids)
    _until(lambda: ledger.heard("held") == "yes", worker)
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join(60)
    _until(lambda: [entry.id for entry in ledger.index()] == ids, None)
    _until(lambda: ledger.in_flight() == 0, None)
    require(ledger.taken() == 3, "the killed explorer's place fell back, the groups keep theirs")
    ledger.commit(ledger.lease(ids, owner="next", step=1, ttl_s=TTL_S), 1)
    events = [event.event for event in ledger.events() if event.group == ids[0]]
    require(events == ["put", "leased", "released", "leased", "committed"], f"the history tells it, got {events}")
    ledger.close()


def a_late_owner_is_refused(buffer: Buffer, tmp: Path) -> None:
    ledger, run = open_new(buffer, tmp)
    (a,) = fill(ledger, run, 1)
    lease = ledger.lease([a], owner="slow", step=1, ttl_s=0.01)
    (opening,) = ledger.enter("slow", 1, 10, version=0, ttl_s=0.01)
    time.sleep(0.05)
    (other,) = ledger.enter("quick", 9, 2, version=0, ttl_s=TTL_S)
    require(other.draw == opening.draw + 1, "the place is free again, its draw is dead")
    late = small_group(run.id, opening.draw)
    _refused(LeaseLost, lambda: ledger.put(late, place=opening.place), "a put after the place was given away")
    require(list(ledger.events())[-1].event == "voided", "the late group is recorded as voided")
    taken = ledger.lease([a], owner="quick", step=1, ttl_s=TTL_S)
    _refused(LeaseLost, lambda: ledger.commit(lease, 1), "a commit after the groups were given away")
    _refused(LeaseLost, lambda: ledger.renew(lease, TTL_S), "renewing what was given away")
    ledger.commit(taken, 1)
    ledger.close()


def an_older_lineage_is_fenced_off(buffer: Buffer, tmp: Path) -> None:
    _several_processes(buffer)
    old, run = open_new(buffer, tmp)
    (a,) = fill(old, run, 1)
    lease = old.lease([a], owner="old", step=1, ttl_s=TTL_S)
    new = buffer.open(run)
    _refused(Fenced, lambda: new.say("status", "early"), "writing before begin or join")
    new.begin(old.position(0), ordered=False)
    for what, write in {
        "put": lambda: old.put(small_group(run.id, 9)),
        "commit": lambda: old.commit(lease, 1),
        "enter": lambda: old.enter("old", 1, 9, version=0, ttl_s=TTL_S),
        "announce": lambda: old.announce(1, ""),
        "say": lambda: old.say("status", "zombie"),
    }.items():
        _refused(Fenced, write, f"{what} by an older lineage")
    require((old.lineage, old.live_lineage(), new.live_lineage()) == (1, 2, 2), "which it can see before it writes")
    require(old.join() == 2, "an explorer joins the newest lineage")
    require(old.put(small_group(run.id, 9)), "and writes again")
    old.close()
    new.close()


def engines_and_trainer_meet(buffer: Buffer, tmp: Path) -> None:
    ledger, _ = open_new(buffer, tmp)
    require(ledger.newest() is None and ledger.acknowledged() == {} and ledger.heard("status") is None, "silence first")
    ledger.announce(0, "")
    ledger.announce(1, "there")
    ledger.acknowledge("a", 0, "digest")
    ledger.acknowledge("a", 1, "probe")
    ledger.acknowledge("b", 0, "digest")
    ledger.say("status", "running")
    ledger.say("status", "done")
    require(ledger.newest() == (1, "there"), "the newest version and where it is")
    require(ledger.acknowledged() == {"a": 1, "b": 0}, "the last receipt of each engine")
    require(ledger.heard("status") == "done", "the last word")
    ledger.close()


def closing_twice_is_fine(buffer: Buffer, tmp: Path) -> None:
    ledger, _ = open_new(buffer, tmp)
    ledger.close()
    ledger.close()


# --- in other processes ------------------------------------------------------------------------------------------------


def _several_processes(buffer: Buffer) -> None:
    if not type(buffer).shared:
        raise NotApplicable("it lives in one process (shared = False)")


def _process(buffer: Buffer, run: BareRun, work: Callable[..., None], *args: Any) -> Any:
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(buffer, run, work, *args), daemon=True)
    process.start()
    return process


def _work(buffer: Buffer, run: BareRun, work: Callable[..., None], *args: Any) -> None:
    ledger = buffer.open(run)
    ledger.join()
    work(ledger, run, *args)
    ledger.close()


def _explore(ledger: Ledger, run: BareRun, owner: str, total: int) -> None:
    while openings := ledger.enter(owner, 3, total, version=0, ttl_s=TTL_S):
        for opening in openings:
            ledger.put(small_group(run.id, opening.draw), place=opening.place)


def _train(ledger: Ledger, run: BareRun, owner: str, total: int) -> None:
    deadline = time.monotonic() + 50
    while sum(event.event == "committed" for event in ledger.events()) < total:
        require(time.monotonic() < deadline, "the groups never came")
        ids = [entry.id for entry in ledger.index()][:STEP_SIZE]
        try:
            if ids:
                ledger.commit(ledger.lease(ids, owner=owner, step=1, ttl_s=TTL_S), 1)
        except LedgerError:
            continue  # the other trainer was quicker: that is what this rule is about
        time.sleep(0.002)


def _hold(ledger: Ledger, run: BareRun, ids: list[str]) -> None:
    ledger.index()
    ledger.lease(ids, owner="doomed", step=1, ttl_s=SHORT_S)
    ledger.enter("doomed", 1, 10, version=0, ttl_s=SHORT_S)
    ledger.say("held", "yes")
    time.sleep(60)


def _until(happened: Callable[[], bool], worker: Any) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        require(time.monotonic() < deadline, "waited 30 s in vain")
        require(worker is None or worker.is_alive(), "the other process ended by itself")
        time.sleep(0.01)


def _each_once(ledger: Ledger, total: int) -> None:
    counts: dict[str, Counter[str]] = {}
    for event in ledger.events():
        counts.setdefault(event.group, Counter())[event.event] += 1
    groups = {group: count for group, count in counts.items() if group}
    require(len(groups) == total, f"{total} draws give {total} groups, got {len(groups)}")
    require(all(count["put"] == 1 and count["committed"] == 1 for count in groups.values()), "each put and used once")
    require(ledger.taken() == total and not ledger.index(), "all places are accounted for")


RULES: dict[str, Callable[..., None]] = {
    rule.__name__.replace("_", " "): rule
    for rule in (
        a_group_comes_back_as_it_was,
        a_second_put_changes_nothing,
        groups_put_together_are_as_if_put_one_by_one,
        groups_are_listed_by_draw_while_they_can_be_leased,
        a_lease_takes_all_or_none,
        the_gate_counts_places,
        each_group_is_used_once_by_competing_threads,
        each_group_is_used_once_by_competing_processes,
        what_a_killed_process_held_falls_back,
        a_late_owner_is_refused,
        a_resume_plays_again_what_the_checkpoint_has_not_seen,
        a_resume_finds_the_draws_that_the_one_before_kept,
        a_resume_trains_nothing_of_versions_that_did_not_survive,
        a_short_step_is_short_only_in_what_survived,
        an_older_lineage_is_fenced_off,
        engines_and_trainer_meet,
        closing_twice_is_fine,
    )
}
