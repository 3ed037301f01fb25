"""What every ledger says and counts the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from trinity_core import codec
from trinity_core.errors import DataError, Fenced, LeaseLost, LedgerError
from trinity_core.protocols import Position
from trinity_core.types import Group, Lease

START = Position(step=0, draw=0, given_up=0)
"""Where a new run stands."""

Status = Literal["stored", "expired", "voided"]
DROPS = ("filtered", "voided")


def reward_of(group: Group) -> float | None:
    """Mean score of the attempts that were sampled and have one; ``None`` without any."""
    values = [float(a.value) for a in group.attempts if a.role == "sample" and a.value is not None]
    return sum(value / len(values) for value in values) if values else None


def step_of(group: Group) -> int:
    """The ``step`` of a *put* event: the oldest version in the group, -1 if nothing was sampled."""
    return -1 if group.version is None else group.version


def restore(group_id: str, data: bytes) -> Group:
    """The stored group; what cannot be read names it."""
    try:
        return codec.unpack(data)
    except DataError as error:
        raise DataError(f"group {group_id}: {error}") from error


def clean(text: str) -> str:
    """``text`` as every database keeps it: no NUL, no lone surrogate."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def place_id(lineage: int, draw: int) -> str:
    """Draws count up within a lineage, so this is never given twice."""
    return f"{lineage}.{draw}"


def lease_id(lineage: int, sequence: int) -> str:
    return f"{lineage}.{sequence}"


def check_fence(held: int, newest: int) -> None:
    """Refuse a write under ``held`` when ``newest`` is the live lineage."""
    if held == newest and held > 0:
        return
    if held == 0:
        raise Fenced(
            "the ledger was opened but not entered: call begin() (a trainer) or join() (an explorer) before writing"
        )
    raise Fenced(
        f"the write was refused: lineage {newest} has begun; this writer holds {held}. Another trainer resumed this run. "
        "An explorer joins again; a trainer must stop"
    )


def check_ids(group_ids: Sequence[str], what: str) -> list[str]:
    """The ids as a list; none, or one twice, is a mistake of the caller."""
    ids = list(group_ids)
    if not ids:
        raise LedgerError(f"{what}: no group is named. Name at least one")
    if len(set(ids)) != len(ids):
        twice = sorted({i for i in ids if ids.count(i) > 1})
        raise LedgerError(f"{what}: {', '.join(twice)} named more than once")
    return ids


def check_position(position: Position, lineage: int, next_draw: int) -> None:
    """Refuse to resume from a checkpoint that this ledger has never reached."""
    if position.draw > next_draw or (position.step > 0 and lineage == 0):
        raise LedgerError(
            f"the checkpoint stands at step {position.step}, draw {position.draw}; this ledger knows {lineage} lineages and "
            f"{next_draw} draws: it does not hold the run's history. A memory buffer forgets with its process (use "
            "buffer=sql); a database file must be the one the run wrote"
        )


def cannot_lease(reasons: Sequence[str]) -> LedgerError:
    return LedgerError(f"no group was leased, because {'; '.join(reasons)}. Ask index() again")


def lease_lost(lease: Lease, what: str) -> LeaseLost:
    return LeaseLost(
        f"{what} of step {lease.step} was refused: the lease {lease.id} of {lease.owner} was lost (its time ended and others "
        "took its groups, or it was already committed or released). Nothing changed"
    )


def place_lost(group_id: str, place: str) -> LeaseLost:
    return LeaseLost(
        f"group {group_id} was refused: its place {place} fell back because its explorer was silent too long "
        "(explorer.place_ttl_s). It is recorded as voided; go on with the next draw"
    )


def wrong_draw(group: Group, draw: int) -> LedgerError:
    return LedgerError(f"group {group.id} of draw {group.draw} cannot take the place of draw {draw}")


def unknown(group_ids: Sequence[str]) -> LedgerError:
    return LedgerError(f"the ledger holds no group {', '.join(group_ids)}")


def surviving(shorts: Mapping[int, int], given_up: int) -> dict[int, int]:
    """Of the places that each step gave up, the first ``given_up``: steps give up in their order."""
    kept = {}
    for step, places in sorted(shorts.items()):
        kept[step] = min(places, given_up)
        given_up -= kept[step]
    return {step: places for step, places in kept.items() if places}


def check_drop(event: str) -> None:
    if event not in DROPS:
        raise LedgerError(f"drop: {event!r} is not how a draw ends. Choose one of {', '.join(DROPS)}")


def did_not_survive(version: int | None, lineage: int) -> str:
    """Reason of the event that ends a group which a resume left without its weights."""
    return f"its version {version} did not survive: lineage {lineage} began before it"


def fell_back(draw: int, owner: str, why: str) -> str:
    """Reason of the event that ends a draw nobody finished."""
    return f"draw {draw}: the place of {owner} fell back, {why}"
