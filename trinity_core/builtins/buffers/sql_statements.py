"""What the SQL ledger asks of the tables of groups. Built once: building a statement takes several times as long as running it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import bindparam

from trinity_core.builtins.buffers import tables
from trinity_core.builtins.buffers.sql_gate import _RUN

G, P, D, U, E = tables.groups.c, tables.places.c, tables.payloads.c, tables.uses.c, tables.events.c
PAGE = 1000
ORDER = (G.draw, G.sequence)
ENTRIES = (
    sa.select(G.id, G.draw, G.version, G.uses, G.reward, G.source, G.sequence).where(G.run == _RUN).order_by(*ORDER)
)
PUT, PUT_DATA = sa.insert(tables.groups), sa.insert(tables.payloads)
IDS = bindparam("ids", expanding=True)
KNOWN = sa.select(G.id, G.status, G.uses, G.lease, G.owner, G.step, G.until).where(G.run == _RUN, G.id.in_(IDS))
DRAWS = sa.select(P.place, P.draw).where(P.run == _RUN, P.place.in_(IDS))
DATA = sa.select(D.id, D.data).where(D.run == _RUN, D.id.in_(IDS))
TRAINED = sa.select(U.id).where(U.run == _RUN, U.step == bindparam("s"), U.id.in_(IDS))
USE = sa.insert(tables.uses)
AGAIN = sa.update(tables.groups).where(G.run == _RUN, G.id == bindparam("i"))
AGAIN_DATA = sa.update(tables.payloads).where(D.run == _RUN, D.id == bindparam("i"))
READY = ENTRIES.where(
    G.status == "stored",
    G.uses < bindparam("max_uses"),
    sa.or_(G.lease.is_(None), G.until <= bindparam("now")),
)
FREE = {"lease": None, "owner": None, "step": None, "until": 0.0}
CHANGE = sa.update(tables.groups).where(G.run == _RUN, G.id.in_(IDS))
HOLD = CHANGE.values({name: bindparam(name) for name in FREE})
EXTEND = CHANGE.values(until=bindparam("until"))
RELEASE, COMMIT = CHANGE.values(FREE), CHANGE.values({**FREE, "uses": G.uses + 1})
EXPIRE = CHANGE.values(status="expired", ended=bindparam("ended"))
OF_LEASE = sa.select(G.id).where(G.run == _RUN, G.lease == bindparam("l"))
EVENTS = sa.select(E.sequence, E.group_id, E.event, E.step, E.lineage, E.reason, E.owner).where(
    E.run == _RUN, E.sequence > bindparam("after")
).order_by(E.sequence).limit(PAGE)  # fmt: skip
