"""Nothing waits for what will never come, and what beats beside a run ends it when it fails."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from types import SimpleNamespace

import pytest

from trinity_core.builtins.buffers.memory import MemoryLedger
from trinity_core.builtins.buffers.state import State
from trinity_core.config.schema import Explorer, Trainer
from trinity_core.errors import DeliveryError, Fenced, LeaseLost, LedgerError, RunError
from trinity_core.protocols import Position
from trinity_core.rollout.scheduler import Played
from trinity_core.run.alongside import alongside, beats
from trinity_core.run.context import Run
from trinity_core.run.deliver import Vanished, deliver, from_folder
from trinity_core.run.filling import Filling
from trinity_core.run.leasing import heartbeat
from trinity_core.run.loop import store
from trinity_core.run.source import Folders, Shelf
from trinity_core.run.state import remove_old
from trinity_core.testing.fakes import bare_config, fake_group
from trinity_core.types import Receipt, Weights


def two_handles() -> tuple[MemoryLedger, MemoryLedger]:
    """A trainer's ledger, begun, and that of an explorer that joined it."""
    state = State()
    trainer, explorer = MemoryLedger(state), MemoryLedger(state)
    trainer.begin(None, ordered=True)
    explorer.join()
    return trainer, explorer


def run_on(ledger, tmp_path, **nodes) -> Run:
    run = Run(bare_config(**nodes), id="run", dir=tmp_path)
    run.ledger = ledger
    run.engine = SimpleNamespace(version=0)
    return run


# --- an explorer waits for weights ------------------------------------------------------------------------------------


def test_an_explorer_that_waits_learns_that_its_trainer_was_replaced(tmp_path):
    trainer, explorer = two_handles()
    trainer.announce(7, "weights/1-7")
    source = Folders(explorer, tmp_path, trainer="run", patience_s=60)

    async def main() -> None:
        waiting = asyncio.create_task(source.wait(8, exact=True, seconds=20))
        await asyncio.sleep(0.1)
        trainer.begin(Position(4, 0, 0), ordered=True)  # version 8 is as far as ever, and of another lineage
        await asyncio.wait_for(waiting, 5)

    with pytest.raises(Fenced, match="lineage 2 has begun; this explorer joined 1"):
        asyncio.run(main())


def test_an_explorer_looks_again_at_what_it_waits_for(tmp_path):
    _, explorer = two_handles()
    for source in (Folders(explorer, tmp_path, trainer="run", patience_s=60), Shelf()):
        assert asyncio.run(asyncio.wait_for(source.wait(3, exact=True, seconds=0.1), 5)) is None


def test_a_dead_trainer_ends_the_explorer_and_one_that_comes_back_in_time_does_not(tmp_path):
    trainer, explorer = two_handles()
    source = Folders(explorer, tmp_path, trainer="run", patience_s=0.3)
    for beat in range(4):
        trainer.say("alive:run", str(beat))
        time.sleep(0.15)
        source.check()
    time.sleep(0.35)
    with pytest.raises(RunError, match="the trainer has given no sign of life"):
        source.check()


def test_an_explorer_follows_a_trainer_that_was_resumed_with_more_steps(tmp_path):
    trainer, explorer = two_handles()
    source = Folders(explorer, tmp_path, trainer="run", patience_s=60)
    assert source.last_step() is None
    trainer.say("steps", "80")
    assert source.last_step() == 80


class Loads:
    """An engine that fails to load, or holds other weights than were sent."""

    version = 0

    def __init__(self, folder, *, vanishes: bool, error: Exception | None) -> None:
        self.folder, self.vanishes, self.error = folder, vanishes, error

    async def load(self, weights, *, in_flight):
        if self.vanishes:
            self.folder.rename(self.folder.with_name(".gone"))
        if self.error is not None:
            raise self.error
        return Receipt(weights.version, "engine", "digest", 1)


@pytest.mark.parametrize(
    ("vanishes", "error", "raised"),
    [
        (True, OSError("no such file"), Vanished),
        (False, OSError("no such file"), OSError),
        (True, None, DeliveryError),
    ],
)
def test_a_folder_that_vanishes_while_it_is_loaded_is_no_damage_and_a_wrong_digest_is(
    tmp_path, vanishes, error, raised
):
    folder = tmp_path / "1-3"
    folder.mkdir()
    engine = Loads(folder, vanishes=vanishes, error=error)
    with pytest.raises(raised) as caught:
        asyncio.run(deliver(engine, Weights(3, "folder", str(folder), digest=2)))
    assert isinstance(caught.value, Vanished) == (raised is Vanished)


def test_a_folder_that_is_there_and_cannot_be_read_is_damage(tmp_path):
    with pytest.raises(Vanished):
        from_folder(tmp_path / "1-3")
    (tmp_path / "version.json").write_text("{")
    with pytest.raises(DeliveryError, match="damaged") as caught:
        from_folder(tmp_path)
    assert not isinstance(caught.value, Vanished)


def test_old_versions_and_what_killed_writers_left_are_removed_and_nothing_else(tmp_path):
    for name in ("1-9", "2-3", "2-5", "2-6", ".1-5.tmp", ".2-6.tmp", ".2-1.gone", "my-notes", "3-x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    remove_old(tmp_path, lineage=2, behind=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2-5", "2-6", "3-x", "my-notes"]


# --- a step fills, or is given up -------------------------------------------------------------------------------------


def play_out(fillings, runs, ledger, *, keep, at_once=2, limit=1000):
    """Explorers take turns: each starts up to ``at_once`` draws, then the oldest draw in flight ends."""
    playing, ended = [], 0
    for turn in range(limit):
        filling, run = fillings[turn % len(fillings)], runs[turn % len(runs)]
        started = filling.enter(at_once)
        playing += [(run, opening) for opening in started]
        if playing:
            owner, opening = playing.pop(0)
            group = fake_group([1.0, 0.0], draw=opening.draw)
            ended += 1
            if keep(opening.draw):
                owner.ledger.put(group, place=opening.place)
            else:
                owner.ledger.drop(group.id, "filtered", "constant", place=opening.place)
        elif ledger.taken() >= 4:
            break
    return ended


@pytest.mark.parametrize("explorers", [1, 3])
def test_a_step_whose_draws_are_all_filtered_ends_within_its_bound(tmp_path, explorers):
    trainer, one = two_handles()
    runs = []
    for number in range(explorers):
        runs.append(run_on(one, tmp_path, groups_per_step=4, explorer=Explorer(order="arrival", max_draws=3)))
        runs[-1].owner = f"explorer-{number}"
    with pytest.raises(RunError, match="step 1: 12 draws gave 0 of 4 groups"):
        play_out([Filling(run) for run in runs], runs, trainer, keep=lambda draw: False)
    # at most max_draws × groups_per_step = 12, and what others had room for when the last of these began
    assert 12 <= trainer.position(1).draw <= 12 + 4 * explorers


def test_of_several_explorers_one_gives_a_short_step_up(tmp_path):
    trainer, one = two_handles()
    nodes = {"groups_per_step": 4, "explorer": Explorer(order="arrival", max_draws=3)}
    runs = [run_on(one, tmp_path, **nodes) for _ in range(3)]
    for number, run in enumerate(runs):
        run.owner = f"explorer-{number}"
    play_out([Filling(run) for run in runs], runs, trainer, keep=lambda draw: draw == 5)
    given_up = [event.reason for event in trainer.events() if event.event == "given_up"]
    assert len(given_up) == 1 and given_up[0].startswith("3 places: step 1")
    assert (trainer.short(1), trainer.taken()) == (3, 4)


def test_a_step_that_keeps_a_third_fills(tmp_path):
    trainer, one = two_handles()
    run = run_on(one, tmp_path, groups_per_step=4, explorer=Explorer(order="arrival", max_draws=4))
    ended = play_out([Filling(run)], [run], trainer, keep=lambda draw: draw % 3 == 0)
    assert trainer.short(1) == 0 and len(trainer.index()) == 4
    assert ended == 10, "draws 0, 3, 6 and 9 were kept"


def test_a_fresh_play_that_is_stored_already_is_an_error_not_a_loss(tmp_path):
    trainer, _ = two_handles()
    run = run_on(trainer, tmp_path)
    run.selector = SimpleNamespace(observe=lambda group: None)
    (opening,) = trainer.enter("run", 1, 9, version=0, ttl_s=60)
    group = fake_group([1.0, 0.0], draw=opening.draw)
    trainer.put(group)
    with pytest.raises(RunError, match="is stored already"):
        asyncio.run(store(run, [(Played(group), opening.place)]))


class Two:
    """An operator that makes two groups of each; tells what the ledger holds when it is asked."""

    def __init__(self, ledger):
        self.ledger, self.seen = ledger, []

    async def apply(self, group):
        self.seen.append([entry.draw for entry in self.ledger.index()])
        return [group, dataclasses.replace(group, id="another")], ""


def test_what_an_operator_makes_of_a_late_group_is_not_stored_either(tmp_path):
    trainer, _ = two_handles()
    run = run_on(trainer, tmp_path)
    run.selector = SimpleNamespace(observe=lambda group: None)
    run.operating = Two(trainer)
    run.operators = {"two": run.operating}
    (late,) = trainer.enter("slow", 1, 9, version=0, ttl_s=-1)
    first, second = trainer.enter("run", 2, 9, version=0, ttl_s=60)
    played = [(Played(fake_group([1.0, 0.0], draw=o.draw)), o.place) for o in (first, late, second)]
    asyncio.run(store(run, played))
    assert [entry.draw for entry in trainer.index()] == [first.draw] * 2 + [second.draw] * 2
    assert run.stored == 4 and trainer.in_flight() == 0
    assert run.operating.seen == [[], [first.draw] * 2, [first.draw] * 2], (
        "a group does not wait for the next one's operators"
    )


# --- what goes on beside ----------------------------------------------------------------------------------------------


async def fails(error: Exception) -> None:
    await asyncio.sleep(0.05)
    raise error


def test_what_fails_beside_a_body_ends_it_at_once_with_its_error():
    async def main() -> None:
        async with alongside(fails(ValueError("no heartbeat"))):
            await asyncio.sleep(60)

    with pytest.raises(ValueError, match="no heartbeat"):
        asyncio.run(asyncio.wait_for(main(), 5))


def test_the_error_and_the_end_of_a_body_are_its_own():
    async def main(error: BaseException | None) -> str:
        async with alongside(asyncio.sleep(60)):
            if error is not None:
                raise error
        return "done"

    assert asyncio.run(asyncio.wait_for(main(None), 5)) == "done"
    for error in (KeyError("mine"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            asyncio.run(main(error))


def test_a_locked_ledger_is_tried_again_until_what_the_beats_kept_alive_is_lost():
    calls: list[float] = []

    def locked_twice() -> None:
        calls.append(time.monotonic())
        if len(calls) in (2, 3):
            raise LedgerError("database is locked")

    async def main(beat, ttl_s: float) -> None:
        await asyncio.wait_for(beats(beat, 0.02, ttl_s), 0.5)

    with pytest.raises(TimeoutError):
        asyncio.run(main(locked_twice, 10))
    assert len(calls) > 4, "it goes on beating"

    def locked() -> None:
        raise LedgerError("database is locked")

    with pytest.raises(LedgerError, match="locked"):
        asyncio.run(main(locked, 0.1))

    def lost() -> None:
        raise LeaseLost("others took its groups")

    with pytest.raises(LeaseLost):
        asyncio.run(main(lost, 10))


def test_a_step_whose_lease_is_lost_ends_at_once(tmp_path):
    trainer, other = two_handles()
    run = run_on(trainer, tmp_path, trainer=Trainer(lease_ttl_s=0.3))
    trainer.put(fake_group([1.0, 0.0]))
    lease = trainer.lease([trainer.index()[0].id], owner="t", step=1, ttl_s=0.3)

    async def main() -> None:
        async with heartbeat(run, lease):
            other.begin(Position(0, 0, 0), ordered=False)  # another trainer resumed the run
            await asyncio.sleep(60)

    with pytest.raises(Fenced) as caught:
        asyncio.run(asyncio.wait_for(main(), 5))
    assert "lineage 2 has begun" in str(caught.value)


def test_giving_a_lease_back_never_hides_why(tmp_path):
    trainer, other = two_handles()
    run = run_on(trainer, tmp_path)
    trainer.put(fake_group([1.0, 0.0]))
    lease = trainer.lease([trainer.index()[0].id], owner="t", step=1, ttl_s=60)

    async def main() -> None:
        async with heartbeat(run, lease):
            other.begin(Position(0, 0, 0), ordered=False)
            raise ZeroDivisionError("the loss is wrong")

    with pytest.raises(ZeroDivisionError, match="the loss is wrong") as caught:
        asyncio.run(main())
    assert "could not be given back: the write was refused" in caught.value.__notes__[0]
