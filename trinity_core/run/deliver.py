"""Delivery: the trainer publishes a version, an engine loads it and proves that it holds it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity_core.algo.digest import digest_tensors
from trinity_core.config.schema import Sync
from trinity_core.errors import DeliveryError
from trinity_core.protocols import LiveBackend, LiveEngine
from trinity_core.types import Receipt, Weights

if TYPE_CHECKING:
    from trinity_core.run.context import Run

FIRST_VERIFIED = 3
"""Deliveries that are always verified."""


class Vanished(DeliveryError):
    """A published folder was removed while it was read: there is a newer one."""


def needs_digest(sync: Sync, delivery: int) -> bool:
    """Whether delivery number ``delivery`` (from 0) carries a digest: the first three, then every ``verify_every``."""
    return delivery < FIRST_VERIFIED or (sync.verify_every > 0 and delivery % sync.verify_every == 0)


def publish(backend: LiveBackend, version: int, *, copy: bool, verify: bool) -> Weights:
    """The backend's weights as ``version``, with a digest of the tensors sent where one is due."""
    weights = backend.publish(version, copy=copy)
    if verify and weights.kind in ("tensors", "adapter") and weights.digest is None:
        weights = Weights(weights.version, weights.kind, weights.payload, digest_tensors(_items(weights.payload)))
    return weights


def to_folder(weights: Weights, folder: Path) -> Weights:
    """Write a copy as a safetensors folder that other processes load; the pointer is the ledger's announcement."""
    import json

    aside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    tensors = dict(_items(weights.payload))
    if all(type(tensor).__module__ == "numpy" for tensor in tensors.values()):
        from safetensors.numpy import save_file
    else:
        from safetensors.torch import save_file  # type: ignore[assignment]

        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, str(aside / "model.safetensors"))
    digest = weights.digest if weights.digest is not None else digest_tensors(tensors.items())
    note = {
        "version": weights.version,
        "kind": "folder" if weights.kind == "tensors" else weights.kind,
        "digest": digest,
    }
    (aside / "version.json").write_text(json.dumps(note))
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)
    return Weights(weights.version, note["kind"], str(folder), digest)


def from_folder(folder: Path) -> Weights:
    """What :func:`to_folder` wrote."""
    import json

    try:
        note = json.loads((folder / "version.json").read_text())
    except (OSError, json.JSONDecodeError) as error:
        gone = not folder.is_dir()
        raise (Vanished if gone else DeliveryError)(
            f"{folder}: published weights cannot be read ({error}). "
            + ("The trainer moved on; poll again" if gone else "They are damaged: stop the trainer and resume it")
        ) from None
    return Weights(int(note["version"]), note["kind"], str(folder), int(note["digest"]))


async def deliver(engine: LiveEngine, weights: Weights) -> Receipt:
    """Load ``weights``; refuse a receipt for another version or a digest that differs from the one sent."""
    try:
        receipt = await engine.load(weights, in_flight="finish")
    except Exception as error:
        if isinstance(weights.payload, (str, Path)) and not Path(weights.payload).is_dir():
            raise Vanished(f"{weights.payload}: removed while it was loaded; the trainer moved on") from error
        raise
    if receipt.version != weights.version:
        raise DeliveryError(
            f"engine {receipt.engine}: acknowledged version {receipt.version}, version {weights.version} was sent"
        )
    if receipt.evidence == "probe":
        raise DeliveryError(
            f"engine {receipt.engine}: its receipt is a probe, which nothing decides yet. Give same_object or digest"
        )
    if weights.digest is not None and weights.kind != "module":
        if receipt.evidence == "digest" and receipt.digest != weights.digest:
            raise DeliveryError(
                f"engine {receipt.engine}: holds other weights than were sent for version {weights.version} "
                f"(digest {receipt.digest:#x}, sent {weights.digest:#x}). The run stops: what it would sample is not the policy"
            )
        if receipt.evidence != "digest":
            raise DeliveryError(
                f"engine {receipt.engine}: a digest was asked for version {weights.version} and the receipt has only "
                f"{receipt.evidence!r}. The engine's load must digest the tensors it holds"
            )
    return receipt


async def load(run: Run, weights: Weights | None) -> bool:
    """Load one version into the run's engine and acknowledge it; ``False`` when there is none to come.

    The lock keeps an evaluation pinned: no version is loaded while one runs.
    """
    if weights is None:
        return False
    assert run.engine is not None
    async with run.engine_lock:
        if run.engine.version != weights.version or run.receipt is None:
            run.receipt = await deliver(run.engine, weights)
            run.ledger.acknowledge(run.owner, weights.version, run.receipt.evidence)
    run.bell.ring()
    return True


def _items(payload: Any) -> Iterable[tuple[str, Any]]:
    return payload.items() if hasattr(payload, "items") else payload
