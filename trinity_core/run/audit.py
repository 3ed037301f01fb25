"""``trinity audit RUN``: replay a run's ledger event by event and say what should not have happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trinity_core.config.schema import Sync
from trinity_core.errors import LedgerError, RunError
from trinity_core.protocols import Event
from trinity_core.run.folder import read_json
from trinity_core.run.gate import Gate
from trinity_core.types import Entry

STATES = ("available", "leased", "committed", "expired", "voided", "filtered")
OWN_FIELDS = ("name",)


@dataclass(frozen=True)
class Limits:
    """What the run's config promised."""

    max_uses: int = 1
    groups_per_step: int | None = None
    """``None``: sizes of steps are not checked."""
    sync: Sync | None = None
    """``None``: staleness is not checked."""


@dataclass
class Report:
    """What an audit found. Clean when ``problems`` is empty."""

    events: dict[str, int]
    """Events by kind."""
    groups: dict[str, int]
    """Groups ever stored, by where they ended."""
    steps: int
    """Steps committed in what survived."""
    lineages: int
    problems: list[str]

    @property
    def clean(self) -> bool:
        return not self.problems

    def text(self) -> str:
        """A table and one line for each problem."""
        rows = [("steps committed", self.steps), ("lineages", self.lineages)]
        rows += [(f"groups {state}", self.groups[state]) for state in STATES if self.groups.get(state)]
        rows += [(f"events {name}", count) for name, count in sorted(self.events.items())]
        lines = [f"{name:<20} {count:>8,}" for name, count in rows]
        verdict = "clean" if self.clean else f"{len(self.problems)} problem{'s' * (len(self.problems) != 1)}"
        return "\n".join([*lines, *self.problems, f"audit: {verdict}"])


@dataclass
class _Group:
    """What the history so far says of one group."""

    id: str
    state: str = "unknown"
    version: int = -1
    owner: str = ""
    lease_step: int = 0
    ended: int = 0
    uses: list[int] = field(default_factory=list)
    stored: bool = False
    dead: int = 0
    """The lineage that began before its version."""


class _Replay:
    """The ledger's rules, once more, over its history."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.gate = Gate(limits.sync, 1) if limits.sync else None
        self.groups: dict[str, _Group] = {}
        self.short: set[int] = set()
        self.lineage = 0
        self.problems: list[str] = []

    def problem(self, event: Event, text: str) -> None:
        self.problems.append(f"event {event.sequence}: {text}")

    def take(self, event: Event) -> None:
        if event.event == "lineage":
            if event.lineage != self.lineage + 1:
                self.problem(event, f"lineage {event.lineage} follows {self.lineage}")
            self.lineage = event.lineage
            self._undo(event.step)
            return
        if event.lineage != self.lineage:
            self.problem(event, f"{event.event} by lineage {event.lineage} while {self.lineage} was live")
        if event.event == "given_up":
            self.short.add(event.step)
        elif event.group:
            group = self.groups.setdefault(event.group, _Group(event.group))
            rule = getattr(self, "_" + event.event, None)
            if rule is None:
                self.problem(event, f"{event.event!r} is no event of a ledger")
            else:
                rule(event, group)

    def _undo(self, step: int) -> None:
        """A lineage from ``step``: later commits and expiries did not happen."""
        for group in self.groups.values():
            group.uses = [use for use in group.uses if use <= step]
            if group.state == "expired" and group.ended > step:
                group.state = "available"
            if group.stored and group.version > step:
                group.dead = self.lineage

    def _put(self, event: Event, group: _Group) -> None:
        if group.state in ("available", "leased", "expired"):
            self.problem(event, f"group {group.id} was put while it was {group.state}")
        group.state, group.stored, group.version, group.uses, group.dead = "available", True, event.step, [], 0

    def _leased(self, event: Event, group: _Group) -> None:
        if group.state == "leased":
            self.problem(event, f"group {group.id} was leased to {event.owner} while {group.owner} held it")
        elif group.state != "available":
            self.problem(event, f"group {group.id} was leased while it was {self._word(group)}")
        elif len(group.uses) >= self.limits.max_uses:
            self.problem(
                event, f"group {group.id} was leased after {len(group.uses)} uses (max_uses {self.limits.max_uses})"
            )
        group.state, group.owner, group.lease_step = "leased", event.owner, event.step

    def _committed(self, event: Event, group: _Group) -> None:
        if group.state != "leased":
            self.problem(event, f"group {group.id} was committed without a lease, while it was {self._word(group)}")
        elif group.owner != event.owner:
            self.problem(event, f"group {group.id} was committed by {event.owner} while {group.owner} held it")
        elif group.lease_step != event.step:
            self.problem(
                event, f"group {group.id} was leased for step {group.lease_step} and committed for {event.step}"
            )
        if event.step in group.uses:
            self.problem(event, f"group {group.id} was committed twice for step {event.step}")
        group.uses.append(event.step)
        if len(group.uses) > self.limits.max_uses:
            self.problem(event, f"group {group.id} was used {len(group.uses)} times (max_uses {self.limits.max_uses})")
        if group.dead:
            self.problem(
                event,
                f"group {group.id} was trained by step {event.step}, and its version {group.version} did not survive lineage {group.dead}",
            )
        if stale := self._stale(group.version, event.step):
            self.problem(event, f"group {group.id} {stale}")
        group.state = "available"

    def _released(self, event: Event, group: _Group) -> None:
        if group.state != "leased" or group.owner != event.owner:
            self.problem(event, f"group {group.id} was released by {event.owner}, who did not hold it")
        else:
            group.state = "available"

    def _expired(self, event: Event, group: _Group) -> None:
        if group.state != "available":
            self.problem(event, f"group {group.id} expired while it was {self._word(group)}")
        group.state, group.ended = "expired", event.step

    def _voided(self, event: Event, group: _Group) -> None:
        if group.state == "leased":
            self.problem(event, f"group {group.id} was {event.event} while {group.owner} held it")
        group.state = event.event

    _filtered = _voided

    def _word(self, group: _Group) -> str:
        return "never put" if group.state == "unknown" else group.state

    def _stale(self, version: int, step: int) -> str | None:
        """Why weights of ``version`` were too old for the step that makes version ``step``."""
        if self.gate is None or version < 0 or (self.gate.ordered and self.limits.max_uses > 1):
            return None  # ordered, used again: later steps come later than the gate counted, and no bound was promised
        if step - 1 <= self.gate.allowed(version):
            return None
        return f"of version {version} was trained by step {step}: the last step allowed is {self.gate.allowed(version) + 1}"


def audit_events(events: Iterable[Event], entries: Sequence[Entry], limits: Limits = Limits()) -> Report:
    """Replay ``events`` and compare the end with ``entries`` (every group that the ledger holds, in any state).

    Checked: no gap in the history; no write of an older lineage; a lease follows a put; a commit belongs to the owner of a
    live lease, of a group whose version survived; at most ``max_uses`` surviving uses, none twice in one step, none after expiry; every stored group is
    accounted for; steps 1..n without a gap, each full or recorded as short; staleness within the bound.
    """
    replay, kinds, last = _Replay(limits), Counter[str](), 0
    for event in events:
        kinds[event.event] += 1
        if event.sequence != last + 1:
            replay.problem(event, f"events {last + 1} to {event.sequence - 1} are missing")
        last = event.sequence
        replay.take(event)
    problems = replay.problems
    if not kinds:
        problems.append("the history is empty: nothing was checked")
    stored = {group.id: group for group in replay.groups.values() if group.stored}
    held = {entry.id: entry for entry in entries}
    problems += [f"group {i} was put and is gone" for i in stored if i not in held]
    problems += [f"group {i} is there and was never put" for i in held if i not in stored]
    problems += [
        f"group {i}: the history counts {len(group.uses)} uses, the ledger {held[i].uses}"
        for i, group in stored.items()
        if i in held and held[i].uses != len(group.uses)
    ]
    steps = Counter(step for group in replay.groups.values() for step in group.uses)
    problems += _sizes(steps, replay.short, limits.groups_per_step)
    where = Counter("committed" if g.uses and g.state == "available" else g.state for g in stored.values())
    return Report(dict(kinds), dict(where), len(steps), replay.lineage, problems)


def _sizes(steps: Counter[int], short: set[int], full: int | None) -> list[str]:
    problems = []
    for step in range(1, max(steps, default=0) + 1):
        size = steps.get(step, 0)
        if size == 0 and step not in short:
            problems.append(f"step {step}: no surviving commit, though later steps have some")
        elif full is not None and size != full and not (step in short and size < full):
            problems.append(f"step {step}: {size} groups instead of {full}, and no short step is recorded")
    return problems


# --- run folders -------------------------------------------------------------------------------------------------------


def audit(run_dir: Path) -> Report:
    """Audit the run in ``run_dir`` against its own config."""
    config = _config(run_dir)
    ledger = open_for_reading(run_dir)
    try:
        limits = Limits(
            max_uses=config.get("trainer", {}).get("max_uses", 1),
            groups_per_step=config.get("groups_per_step"),
            sync=Sync(**config["sync"]) if "sync" in config else None,
        )
        return audit_events(ledger.events(), ledger.entries(), limits)
    finally:
        ledger.close()


def open_for_reading(run_dir: Path) -> Any:
    """The ledger of the run in ``run_dir``, as its ``config.yaml`` and ``words.json`` name it. Nothing is written to it.

    Besides the ledger's own methods it has ``entries()`` and ``groups(before_draw=…)``. Raises
    :class:`~trinity_core.errors.LedgerError` where the ledger did not outlive its process.
    """
    from trinity_core.plugins import resolve

    node = dict(_config(run_dir).get("buffer") or {})
    cls: Any = resolve("buffer", node.get("name", ""))
    if not cls.shared or not hasattr(cls, "ledger"):
        raise LedgerError(
            f"{run_dir}: its buffer was {node.get('name')!r}, which leaves nothing on disk to read. Runs with buffer=sql can be "
            "audited, digested and resumed"
        )
    run_id = read_json(run_dir / "words.json", "the run's id")["id"]
    buffer = cls(**{name: value for name, value in node.items() if name not in OWN_FIELDS})
    return buffer.ledger(run_dir, run_id, create=False)


def _config(run_dir: Path) -> dict[str, Any]:
    import yaml

    path = run_dir / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise RunError(
            f"{path}: no such file, so {run_dir} is not a run folder. Name the folder that a run printed"
        ) from None
    except yaml.YAMLError as error:
        raise RunError(f"{path}: the saved config is damaged ({error}). Restore the file") from None
    if not isinstance(config, dict):
        raise RunError(f"{path}: the saved config is damaged (not a map). Restore the file")
    return config
