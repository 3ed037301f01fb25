"""The run folder: who owns it, what it holds, and how its files are written.

words.json       the words typed           config.yaml     every field of every node, redacted
manifest.json    versions and plugins      metrics.jsonl   one line per event (tracker jsonl)
buffer.db        the ledger                checkpoints/    step-<n>/ and the pointer ``latest``
evaluations.json finished evaluations      summary.json    written at the end, also after a failure
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trinity_core.errors import ConfigError, RunError

LATEST = "latest"
OURS = (
    "words.json", "config.yaml", "manifest.json", "summary.json", "failure.json", "metrics.jsonl", "buffer.db",
    "buffer.db-wal", "buffer.db-shm", ".lock",
)  # fmt: skip
"""Files that a run has written by the time its parts are open."""


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write aside, fsync, rename: a reader sees the old file or the new one, never half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def read_json(path: Path, what: str) -> Any:
    """The JSON in ``path``; a missing or broken file is one clear error about ``what``."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise RunError(f"{path}: no such file, so {path.parent} is not a run folder ({what} is missing)") from None
    except json.JSONDecodeError as error:
        raise RunError(f"{path}: {what} is damaged ({error}). Restore the file or start a new run") from None


class RunFolder:
    """One run's folder, held by one process at a time (a lock file; it falls with the process)."""

    def __init__(self, path: Path, made: Sequence[Path] = ()) -> None:
        self.path = path
        self._made = list(made)
        """Folders that were not there before, outermost first; empty if this one was."""
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path | None) -> RunFolder:
        """A new folder. Without a path: ``runs/<date>/<time>``, never one that exists."""
        if path is None:
            stamp = time.strftime("%Y-%m-%d/%H-%M-%S")
            made = _missing(Path("runs") / stamp)
            for attempt in range(1000):
                candidate = Path("runs") / (stamp if attempt == 0 else f"{stamp}-{attempt}")
                try:
                    candidate.mkdir(parents=True)
                except FileExistsError:
                    continue
                path = candidate
                made = [*made[:-1], candidate.resolve()]
                break
            else:
                raise RunError(f"runs/{stamp}: a thousand runs started in this second; name a folder with out=DIR")
        else:
            refuse_used(path)
            made = _missing(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"out={path}: cannot be made ({error.strerror}). Choose a folder that can be written"
            ) from None
        return cls(path.resolve(), made).hold()

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The folder of an earlier run, to be resumed."""
        if not (path / "words.json").is_file():
            raise ConfigError(
                f"resume={path}: not a run folder (it has no words.json). Name the folder that a run printed"
            )
        return cls(path.resolve()).hold()

    def hold(self) -> RunFolder:
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = None
            raise RunError(
                f"{self.path}: another process runs in this folder. Wait for it, stop it, or choose another folder"
            ) from None
        return self

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def forget(self) -> None:
        """Remove what a run that never began has left, so that the same words can be tried again. A folder that was there
        before stays, and so does every file in it that is none of ours."""
        if not self._made:
            for name in OURS:
                (self.path / name).unlink(missing_ok=True)
            return
        shutil.rmtree(self.path)
        for folder in reversed(self._made[:-1]):
            if any(folder.iterdir()):
                break
            folder.rmdir()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"


def refuse_used(path: Path) -> None:
    """Raise :class:`ConfigError` where a new run cannot have this folder for itself."""
    if path.exists() and (not path.is_dir() or any(not _never_began(file) for file in path.iterdir())):
        raise ConfigError(
            f"out={path}: the folder exists and is not empty. A run never shares a folder: choose another one, "
            f"or go on with that run by resume={path}"
        )


def _missing(path: Path) -> list[Path]:
    """``path`` and the folders above it that do not exist, outermost first."""
    path = path.resolve()
    return [folder for folder in (*reversed(path.parents), path) if not folder.exists()]


def _never_began(file: Path) -> bool:
    """A run that was killed before it had written its words leaves these alone."""
    return file.name == ".lock" or (file.name.startswith(".words.json.") and file.name.endswith(".tmp"))
