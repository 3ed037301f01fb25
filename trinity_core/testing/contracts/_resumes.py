"""What a ledger keeps when a run is resumed: what the checkpoint has seen, and nothing that it would see twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from trinity_core.protocols import Buffer, Position
from trinity_core.testing.contracts._support import TTL_S, fill, open_new
from trinity_core.testing.rules import require


def a_resume_plays_again_what_the_checkpoint_has_not_seen(buffer: Buffer, tmp: Path) -> None:
    ledger, run = open_new(buffer, tmp)
    one, two = fill(ledger, run, 2), fill(ledger, run, 2, version=1)
    ledger.commit(ledger.lease(one, owner="kit", step=1, ttl_s=TTL_S), 1)
    position = ledger.position(1)
    require(position == Position(1, 2, 0), "draws 2 and 3 began under version 1: a resume plays them again")
    ledger.commit(ledger.lease(two, owner="kit", step=2, ttl_s=TTL_S), 2)
    ledger.announce(2, "somewhere")
    require(ledger.begin(position, ordered=True) == 2, "a resume opens the next lineage")
    require(ledger.taken() == 2 and not ledger.index() and ledger.newest() is None, "step 2 did not happen")
    again = fill(ledger, run, 2, version=1)
    require(again == two, "the same draws give the same ids, and are stored again")
    ledger.commit(ledger.lease(two, owner="kit", step=2, ttl_s=TTL_S), 2)
    history = Counter(event.event for event in ledger.events())
    require(history["committed"] == 6 and history["voided"] == 2, "the history keeps what was undone")
    ledger.begin(Position(1, 2, 0), ordered=False)
    require(ledger.taken() == 4, "an asynchronous resume keeps groups")
    require([entry.id for entry in ledger.index()] == two, "uses by steps that did not survive do not count")
    ledger.close()


def a_resume_finds_the_draws_that_the_one_before_kept(buffer: Buffer, tmp: Path) -> None:
    ledger, run = open_new(buffer, tmp)
    played = fill(ledger, run, 3)
    for lineage in (2, 3):
        kept = ledger.position(1)
        require(kept == Position(1, 3, 0), "what was played before anything was trained lies before step 1")
        require(ledger.begin(Position(0, kept.draw, 0), ordered=True) == lineage, "nothing was trained in between")
        require([entry.id for entry in ledger.index()] == played, "and nothing is lost, however often it is taken up")
    require([o.draw for o in ledger.enter("kit", 1, 4, version=0, ttl_s=TTL_S)] == [3], "play goes on behind it")
    require(ledger.position(1) == Position(1, 4, 0), "with the same weights")
    ledger.close()


def a_resume_trains_nothing_of_versions_that_did_not_survive(buffer: Buffer, tmp: Path) -> None:
    ledger, run = open_new(buffer, tmp)
    one, two, three = (fill(ledger, run, 2, version=version) for version in (0, 1, 2))
    ledger.commit(ledger.lease(two, owner="kit", step=2, ttl_s=TTL_S), 2)
    ledger.begin(Position(1, 2, 0), ordered=False)
    require([entry.id for entry in ledger.index()] == [*one, *two], "groups of version 2 are gone: step 1 is the last")
    require(ledger.taken() == 4, "and their places are free")
    ended = [event.group for event in ledger.events() if event.event == "expired"]
    require(ended == three, "the history says how they ended")
    ledger.begin(Position(2, 2, 0), ordered=False)
    require([entry.id for entry in ledger.index()] == [*one, *two], "nor do they come back with a later version 2")
    ledger.begin(Position(0, 0, 0), ordered=False)
    require([entry.id for entry in ledger.index()] == one, "what an earlier resume loses besides is gone too")
    ledger.close()


def a_short_step_is_short_only_in_what_survived(buffer: Buffer, tmp: Path) -> None:
    ledger, run = open_new(buffer, tmp)
    fill(ledger, run, 3)
    require(not ledger.give_up(1, 1, "short", taken=2), "another explorer was faster: 3 places are taken, not 2")
    require(ledger.give_up(1, 1, "short", taken=3) and ledger.taken() == 4, "one of several gives up")
    position = ledger.position(1)
    require(position.given_up == 1, "a checkpoint knows it")
    ledger.give_up(2, 2, "short")
    require((ledger.short(1), ledger.short(2), ledger.short(3)) == (1, 2, 0), "each step's own")
    ledger.begin(position, ordered=True)
    require((ledger.short(1), ledger.short(2)) == (1, 0), "step 2 is played again, and may fill this time")
    ledger.close()
