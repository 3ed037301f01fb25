"""A contestant that takes turns with others; what runs in it reads ``sides/turns.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import common


class Side:
    """A process that takes turns with others: it waits while they compute. What else it prints is shown."""

    def __init__(self, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        self._words = [str(word) for word in command]
        self._process = subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        self.peak_rss_mb = 0.0
        """Largest resident memory of it and its children together, seen once a second."""
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        self._answer()

    def turn(self, word: str) -> dict:
        """Let it do what ``word`` names; what it told. ``SystemExit`` if it ends instead."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """Tell it that there is no more, and wait until it is gone: :attr:`peak_rss_mb` is whole then."""
        self._process.communicate()
        self._watch.join()

    def _answer(self) -> dict:
        for line in self._process.stdout or ():
            if line.startswith("{"):
                return json.loads(line)
            print(line, end="", file=sys.stderr, flush=True)
        raise SystemExit(f"exit status {self._process.wait()}: {' '.join(self._words)}")

    def _look(self) -> None:
        self.peak_rss_mb = common.peak_rss_mb(self._process, every_s=1.0)
