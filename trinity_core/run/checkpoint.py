"""Checkpoints: written aside, synced, renamed, the pointer last; every file is hashed, nothing is pickled by us."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trinity_core.codec import pack_state, unpack_state
from trinity_core.errors import CheckpointError, RunError
from trinity_core.protocols import LiveBackend
from trinity_core.run.folder import LATEST, read_json, write_atomic, write_json

BACKEND = "backend"
STATE = "state.msgpack"
META = "meta.json"
STEPS = "step-" + "[0-9]" * 6
"""Names of checkpoints, as a glob."""


def name_of(step: int) -> str:
    return f"step-{step:06d}"


def step_of(path: Path) -> int:
    """The step of a checkpoint's folder, as :func:`name_of` wrote it."""
    return int(path.name.removeprefix("step-"))


def save(root: Path, step: int, backend: LiveBackend, state: dict[str, Any], *, keep: int) -> Path:
    """Write the checkpoint of ``step`` now; see :func:`write`."""
    return write(root, step, backend.save, pack_state(state), keep=keep)


def write(root: Path, step: int, weights: Callable[[Path], None], state: bytes, *, keep: int) -> Path:
    """Write the checkpoint of ``step`` and keep the last ``keep``. On failure the earlier ones stay as they were.

    ``weights`` writes the backend's files into the folder it is given, ``state`` is the kernel's, packed: nothing that is
    still being trained is read here, so that this may run beside training.
    """
    final = root / name_of(step)
    aside = root / f".{name_of(step)}.tmp"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        (aside / BACKEND).mkdir(parents=True)
        weights(aside / BACKEND)
        (aside / STATE).write_bytes(state)
        hashes = {str(path.relative_to(aside)): _sha256(path) for path in sorted(aside.rglob("*")) if path.is_file()}
        write_json(aside / META, {"step": step, "sha256": hashes})
        for path in (*(p for p in aside.rglob("*")), aside):
            fsync(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(aside, final)
        fsync(root)
        write_atomic(root / LATEST, final.name + "\n")
    except Exception as error:
        # whatever went wrong (torch and safetensors have errors of their own for a full disk): nothing half-written stays
        shutil.rmtree(aside, ignore_errors=True)
        last = newest(root)
        kept = f"The last good checkpoint is {last}" if last else "There is no earlier checkpoint"
        full = isinstance(error, OSError) or "I/O error" in str(error) or "write" in str(error)
        cause = str(error) if full else f"{type(error).__name__}: {error}"
        fix = "Free some space, then resume" if full else "Mend that, then resume"
        raise CheckpointError(f"{final}: could not be written ({cause}). {kept}. {fix}") from error
    for old in sorted(root.glob(STEPS))[:-keep] if keep > 0 else []:
        shutil.rmtree(old)
    return final


def newest(root: Path) -> Path | None:
    """The checkpoint that the pointer names, else the newest whole one."""
    pointer = root / LATEST
    named = pointer.read_text(errors="replace").strip() if pointer.is_file() else ""
    if re.fullmatch(r"step-\d+", named) and (root / named).is_dir():
        return root / named
    return max((path for path in root.glob(STEPS) if (path / META).is_file()), default=None)


def load_state(path: Path) -> dict[str, Any]:
    """Check every file's hash and return the kernel's state; the backend loads ``path / BACKEND`` itself."""
    try:
        meta = read_json(path / META, "the checkpoint's list of files")
    except RunError as error:
        raise CheckpointError(str(error)) from None
    others = sorted(p.name for p in path.parent.glob(STEPS) if p != path)
    way_on = f"Remove {path} to go on from {others[-1]}" if others else "No other checkpoint is left: start a new run"
    if not isinstance(meta, dict) or not isinstance(meta.get("sha256"), dict):
        raise CheckpointError(f"{path / META}: damaged (it lists no files). {way_on}")
    for relative, expected in meta["sha256"].items():
        file = path / relative
        if not file.is_file():
            raise CheckpointError(f"{file}: missing from the checkpoint. {way_on}")
        if _sha256(file) != expected:
            raise CheckpointError(f"{file}: damaged (its sha256 is not the one written). {way_on}")
    state: dict[str, Any] = unpack_state((path / STATE).read_bytes())
    return state


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """A file's bytes, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
