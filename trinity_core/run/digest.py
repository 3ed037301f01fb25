"""``trinity digest RUN``: one hash over what a run computed, none of where, when and under which id it did."""

from __future__ import annotations

import hashlib
from pathlib import Path

from trinity_core.codec import pack, unpack_state
from trinity_core.errors import RunError
from trinity_core.run import checkpoint
from trinity_core.run.audit import open_for_reading
from trinity_core.run.folder import read_json

UNTIMED = ("step", "deliveries", "metrics_chain", "components")
"""Fields of a checkpoint's state that a digest covers."""


def digest(run: Path) -> str:
    """sha256 over weights, optimizer, schedule, RNG, component state, metrics, and the surviving groups in draw order."""
    last = checkpoint.newest(run / "checkpoints")
    if last is None:
        raise RunError(f"{run}: no checkpoint, so there is nothing to digest yet")
    meta = read_json(last / checkpoint.META, "the checkpoint's list of files")
    total = hashlib.sha256()
    for name, sha in sorted(meta["sha256"].items()):
        if name != checkpoint.STATE:
            total.update(f"{name} {sha}\n".encode())
    checkpoint.load_state(last)  # refuses a damaged checkpoint
    state = unpack_state((last / checkpoint.STATE).read_bytes())
    # What a tracker keeps is its identity elsewhere (a run id): it watches, it computes nothing.
    state["components"] = {k: v for k, v in state["components"].items() if not k.startswith("trackers.")}
    total.update(repr([(field, _stable(state[field])) for field in UNTIMED]).encode())
    ledger = open_for_reading(run)
    try:
        for group in ledger.groups(before_draw=int(state["position"]["draw"])):
            group.id = group.id.rpartition("/")[2]
            total.update(pack(group))
    finally:
        ledger.close()
    return total.hexdigest()


def _stable(value: object) -> object:
    """Maps in order of key, so that two equal states print the same."""
    if isinstance(value, dict):
        return [(key, _stable(value[key])) for key in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [_stable(item) for item in value]
    if hasattr(value, "tobytes"):
        return (str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest())  # type: ignore[attr-defined]
    return value
