"""Any sequence of calls gives the same answers, refusals and history on every ledger: memory is the reference."""

from __future__ import annotations

import random
from itertools import zip_longest

import pytest

from trinity_core.builtins.buffers.memory import MemoryBuffer, MemoryLedger
from trinity_core.errors import LedgerError
from trinity_core.protocols import Position
from trinity_core.run.audit import Limits, audit_events
from trinity_core.testing.contracts._support import BareRun, small_group

OVER, LONG = -1.0, 1000.0
"""Times to live: a lease that has already ended, one that does not end during a test. No clock decides anything."""
OPS = (
    "enter",
    "put",
    "put_all",
    "lease",
    "commit",
    "drop",
    "release",
    "expire",
    "renew",
    "leave",
    "begin",
    "join",
    "other",
)
WEIGHTS = (6, 5, 4, 5, 5, 2, 2, 2, 1, 1, 1, 2, 2)


class Pair:
    """Two ledgers that get the same calls, each with two handles: one process and another."""

    def __init__(self, handles):
        self.handles = handles
        self.places, self.leases, self.step = [], [], 0

    def do(self, which, name, *args, **kwargs):
        """Call both; answers and refusals must be equal. Returns the answer, ``None`` for a refusal."""
        answers = []
        for handles in self.handles:
            try:
                answer = getattr(handles[which], name)(*args, **kwargs)
                if name == "put_all":
                    answer = [str(one) for one in answer]
                answers.append((answer, None))
            except LedgerError as error:
                answers.append((None, (type(error), str(error))))
        assert answers[0] == answers[1], (name, args, kwargs)
        return answers[0][0]

    def op(self, rng, name, which):
        ids = [f"r/{draw:06d}" for draw in rng.sample(range(8), rng.randint(1, 3))]
        ttl_s = rng.choice([LONG, LONG, OVER])
        if name == "enter":
            owner = rng.choice("xy")
            version = rng.randint(0, 2)
            got = self.do(which, "enter", owner, rng.randint(0, 3), rng.randint(0, 9), version=version, ttl_s=ttl_s)
            self.places += got or []
        elif name == "put":
            opening = rng.choice([*self.places, None])
            draw = rng.randrange(8) if opening is None or rng.random() < 0.05 else opening.draw
            group = small_group("r", draw, version=rng.choice([None, 0, 1, 2]), reward=rng.choice([0.25, 0.5]))
            self.do(which, "put", group, place=opening and opening.place)
        elif name == "put_all":
            openings = [rng.choice([*self.places, None]) for _ in range(rng.randint(0, 3))]
            draws = [rng.randrange(8) if opening is None else opening.draw for opening in openings]
            groups = [small_group("r", draw, version=rng.choice([None, 0, 1, 2])) for draw in draws]
            self.do(which, "put_all", [(g, o and o.place) for g, o in zip(groups, openings)])
        elif name == "lease":
            index = [entry.id for entry in self.do(which, "index", max_uses=rng.choice([1, 1, 2]))]
            chosen = index[: rng.randint(1, 3)] if rng.random() < 0.8 else ids
            self.step += 1
            lease = self.do(which, "lease", chosen, owner=rng.choice("tu"), step=self.step, ttl_s=ttl_s)
            self.leases += [lease] if lease else []
        elif name in ("commit", "release", "renew") and self.leases:
            lease = self.leases[-1] if rng.random() < 0.7 else rng.choice(self.leases)
            extra = {"commit": (lease.step,), "renew": (ttl_s,), "release": ()}[name]
            self.do(which, name, lease, *extra)
        elif name == "drop":
            place = rng.choice([*self.places, None])
            event = rng.choice(["filtered", "voided", "nonsense"])
            self.do(which, "drop", ids[0], event, "why\0", place=place and place.place)
        elif name == "expire":
            self.do(which, "expire", ids, "old")
        elif name == "leave" and self.places:
            self.do(which, "leave", rng.choice(self.places).place)
        elif name == "begin":
            at = Position(rng.randint(0, self.step), rng.randint(0, 6), rng.randint(0, 2))
            self.do(which, "begin", rng.choice([at, at, None]), ordered=rng.random() < 0.5)
        elif name == "join":
            self.do(which, "join")
        elif name == "other":
            self.do(which, "announce", rng.randint(0, 3), "here")
            self.do(which, "acknowledge", rng.choice("ab"), rng.randint(0, 3), "digest")
            self.do(which, "say", "status", rng.choice("pq"))
            self.do(which, "give_up", rng.randint(0, 1), self.step, "short", taken=rng.choice([None, None, 2, 3]))
            self.do(which, "renew_places", rng.choice("xy"), ttl_s)

    def look(self):
        for which in (0, 1):
            self.do(which, "index")
        for name, kwargs in {
            "taken": {},
            "in_flight": {},
            "first_in_flight": {},
            "newest": {},
            "acknowledged": {},
            "entries": {},
        }.items():
            self.do(0, name, **kwargs)
        self.do(0, "in_flight", before_version=1)
        self.do(0, "position", self.step)
        self.do(0, "short", self.step)
        self.do(1, "live_lineage")
        self.do(1, "heard", "status")

    def end(self):
        histories = [list(handles[0].events()) for handles in self.handles]
        for mine, theirs in zip_longest(*histories):
            assert mine == theirs
        half = len(histories[0]) // 2
        assert list(self.handles[1][0].events(after=half)) == histories[0][half:]
        report = audit_events(histories[0], self.handles[0][0].entries(), Limits(max_uses=2))
        # "no surviving commit" and "leased after": this test leases and skips steps as no trainer would
        return [problem for problem in report.problems if "surviving commit" not in problem]


CASES = [
    *(("sqlite", seed) for seed in range(10)),
    # servers run the same statements: one sequence each tells whether they answer alike
    pytest.param("postgresql", 0, marks=pytest.mark.service),
    pytest.param("mariadb", 1, marks=pytest.mark.service),
]


@pytest.mark.parametrize(("buffer", "seed"), CASES, indirect=["buffer"])
def test_the_same_calls_give_the_same_answers(buffer, seed, tmp_path):
    rng = random.Random(seed)
    run = BareRun(tmp_path)
    first = MemoryBuffer().open(run)
    pair = Pair([(first, MemoryLedger(first._state)), (buffer.open(run), buffer.open(run))])
    pair.do(0, "begin", None, ordered=True)
    pair.do(1, "join")
    for name in rng.choices(OPS, WEIGHTS, k=90):
        pair.op(rng, name, rng.choice([0, 0, 1]))
        pair.look()
    assert pair.end() == []
    for handles in pair.handles:
        for handle in handles:
            handle.close()
