"""Tables of the SQL ledger. Every row belongs to a run, so several runs can share one database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Double, Index, Integer, LargeBinary, MetaData, String, Table, Text

PREFIX = "trinity_"
FORMAT = 1
"""Version of the tables, kept in ``meta``: a ledger of another version is refused, not guessed at."""

metadata = MetaData()
_ID = 255
"""Characters of an id: short enough for an index in every database."""


def _table(name: str, *columns: Any) -> Table:
    # utf8mb4_bin: MariaDB would otherwise take "A" and "a" for the same id.
    return Table(
        PREFIX + name, metadata, _key("run", 128), *columns, mysql_charset="utf8mb4", mysql_collate="utf8mb4_bin"
    )


def _key(name: str, length: int = _ID) -> Column[Any]:
    return Column(name, String(length), primary_key=True)


def _number(name: str, *, key: bool = False, null: bool = False) -> Column[Any]:
    return Column(name, BigInteger, primary_key=key, nullable=null, autoincrement=False)


meta = _table(
    "meta",
    Column("format", Integer, nullable=False),
    _number("lineage"),
    _number("sequence"),
    _number("next_draw"),
    _number("committed"),
    _number("given_up"),
    _number("counted"),
)
"""One row per run, locked by every write: the fence, the counters, and the order of events."""

groups = _table(
    "groups",
    _key("id"),
    _number("draw"),
    _number("version", null=True),
    Column("reward", Double, nullable=True),
    Column("source", String(_ID), nullable=False),
    _number("sequence"),
    Column("status", String(8), nullable=False),
    _number("ended"),
    _number("uses"),
    Column("lease", String(_ID), nullable=True),
    Column("owner", String(_ID), nullable=True),
    _number("step", null=True),
    Column("until", Double, nullable=False),
)
Index(PREFIX + "groups_ready", groups.c.run, groups.c.status, groups.c.uses, groups.c.draw, groups.c.sequence)
Index(PREFIX + "groups_lease", groups.c.run, groups.c.lease)

payloads = _table("payloads", _key("id"), Column("data", LargeBinary(2**32 - 1), nullable=False))
"""The groups themselves, apart from what the index shows: a look at the index reads no payload."""

uses = _table("uses", _number("step", key=True), _key("id"))
"""Commits that survived. The history of all commits is in ``events``."""
Index(PREFIX + "uses_id", uses.c.run, uses.c.id)

places = _table(
    "places", _key("place"), _number("draw"), Column("owner", String(_ID)), _number("version"), Column("until", Double)
)
begun = _table("begun", _number("version", key=True), _number("draw"))
"""The last draw begun under each version."""

events = _table(
    "events",
    _number("sequence", key=True),
    Column("group_id", String(_ID), nullable=False),
    Column("event", String(16), nullable=False),
    _number("step"),
    _number("lineage"),
    Column("reason", Text, nullable=False),
    Column("owner", String(_ID), nullable=False),
)
announced = _table(
    "announced", _number("lineage", key=True), _number("version", key=True), Column("location", Text, nullable=False)
)
receipts = _table(
    "receipts",
    _number("lineage", key=True),
    _key("engine"),
    _number("version"),
    Column("evidence", Text, nullable=False),
)
words = _table("words", _key("word"), Column("said", Text, nullable=False))
