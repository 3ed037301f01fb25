"""Processes that compute scores, each item under a hard kill."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import msgpack

from trinity_core.errors import ConfigError, RunError
from trinity_core.rollout.outcome import InWorker
from trinity_core.rollout.worker import LENGTH

Method = Literal["attempt", "group", "operator"]
_START_S = 120.0
"""Longest wait for a process to import and build a component: sympy on a busy machine takes a while."""
# A fresh interpreter with the parent's path, whatever started the parent: no fork of a process that holds threads and
# weights, and no second import of somebody's __main__.
_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from trinity_core.rollout.worker import main; main()"


class WorkerGone(Exception):
    """The process died or sent nonsense."""


class WorkerLate(Exception):
    """The item took longer than its limit."""


@dataclass
class Spec:
    """A component on its way to a process: config only."""

    where: str
    """Node in the config, for messages: ``rewards.math``."""
    timeout_s: float
    payload: bytes
    digest: str

    @classmethod
    def of(cls, component: Any, where: str) -> Spec:
        """Raises :class:`~trinity_core.errors.ConfigError` if another process could not build it."""
        kind = type(component)
        if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
            raise ConfigError(
                f"{where}: {kind.__qualname__} computes in a process of its own, which cannot import it from where it is "
                f"defined ({kind.__module__}). Move it to the top of a module, or make it async"
            )
        try:
            payload = pickle.dumps(component)
        except Exception as error:
            raise ConfigError(f"{where}: {kind.__qualname__} cannot be sent to its process: {error}") from error
        limit = float(getattr(component, "timeout_s", 60.0))
        return cls(where, limit, payload, hashlib.sha256(payload).hexdigest())


class Worker:
    """One process, speaking frames."""

    def __init__(self) -> None:
        path = [entry or os.getcwd() for entry in sys.path]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ},
            start_new_session=True,  # so that the kill reaches what a reward has started
        )
        self.known: set[str] = set()
        self._buffer = bytearray()

    def send(self, message: dict[str, Any]) -> None:
        body = msgpack.packb(message)
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(LENGTH.pack(len(body)) + body)
            self.process.stdin.flush()
        except (OSError, ValueError) as error:
            raise WorkerGone(str(error)) from error

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The next frame. Raises :class:`WorkerLate` or :class:`WorkerGone`."""
        assert self.process.stdout is not None
        end = time.monotonic() + timeout_s
        while True:
            if len(self._buffer) >= LENGTH.size:
                size = LENGTH.size + LENGTH.unpack_from(self._buffer)[0]
                if len(self._buffer) >= size:
                    body = bytes(self._buffer[LENGTH.size : size])
                    del self._buffer[:size]
                    try:
                        answer = msgpack.unpackb(body)
                    except ValueError as error:
                        raise WorkerGone("its pipe carries something else") from error
                    if not isinstance(answer, dict):
                        raise WorkerGone("its pipe carries something else")
                    return answer
            left = end - time.monotonic()
            if left <= 0:
                raise WorkerLate
            try:
                poll = select.poll()
                poll.register(self.process.stdout, select.POLLIN)
                if not poll.poll(left * 1000):
                    raise WorkerLate
                data = os.read(self.process.stdout.fileno(), 1 << 20)
            except (OSError, ValueError) as error:  # closed by kill()
                raise WorkerGone(str(error)) from error
            if not data:
                raise WorkerGone(self._last_words())
            self._buffer += data

    def _last_words(self) -> str:
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """SIGKILL the process and all it has started. Twice is fine."""
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # what was not sent to a killed process is nobody's loss


class Pool:
    """``workers`` processes, started when first needed and used again; one that hangs or dies is replaced.

    ``numbers``: how many processes were started, killed for being late, and lost.
    """

    def __init__(self, workers: int = 1) -> None:
        if workers < 1:
            raise ConfigError(f"explorer.reward_workers: {workers} processes cannot compute anything. At least 1")
        self.numbers = {"started": 0, "late": 0, "lost": 0}
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="trinity-score")
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._lock = threading.Lock()
        self._closed = False

    async def run(self, spec: Spec, method: Method, group: bytes, items: Sequence[int]) -> dict[int, dict[str, Any]]:
        """One job. Answers by item: ``score``, ``scores``, ``groups`` or ``error``, or the kernel's own ``late`` and
        ``lost`` (a reason). Raises :class:`~trinity_core.errors.RunError` if the component cannot be built there."""
        if self._closed:
            raise RunError(f"{spec.where}: the reward processes are closed")
        future = self._threads.submit(self._job, spec, method, group, list(items))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Kill all processes. Twice is fine."""
        with self._lock:
            self._closed = True
            workers, self._all, self._idle = list(self._all), set(), []
        for worker in workers:
            worker.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _job(self, spec: Spec, method: Method, group: bytes, items: list[int]) -> dict[int, dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < len(items):
            missing = [item for item in items if item not in answers]
            worker = self._take()
            try:
                for answer in self._ask(worker, spec, method, group, missing):
                    answers[int(answer["item"])] = answer
            except WorkerLate:
                self._discard(worker, "late")
                at = next(item for item in missing if item not in answers)
                answers[at] = {"late": f"{spec.where} took longer than {spec.timeout_s:g} s and was killed"}
            except WorkerGone as gone:
                self._discard(worker, "lost")
                if self._closed:
                    raise RunError(f"{spec.where}: the reward processes were closed while it computed") from gone
                at = next(item for item in missing if item not in answers)
                answers[at] = {"lost": f"the process of {spec.where} died ({gone})"}
            except BaseException:
                self._discard(worker, "lost")
                raise
            else:
                with self._lock:
                    self._idle.append(worker)
        return answers

    def _ask(
        self, worker: Worker, spec: Spec, method: Method, group: bytes, items: list[int]
    ) -> Iterator[dict[str, Any]]:
        known = spec.digest in worker.known
        worker.send(
            {
                "component": spec.digest,
                "spec": b"" if known else spec.payload,
                "where": spec.where,
                "method": method,
                "group": group,
                "items": items,
            }
        )
        try:
            answer = worker.receive(_START_S)
        except WorkerLate:
            raise RunError(f"{spec.where}: its process was not ready after {_START_S:g} s") from None
        if "failed" in answer:
            said = f"{spec.where}: its process could not build it: {answer['failed']}"
            raise RunError(said) from InWorker(answer["traceback"])
        worker.known.add(spec.digest)
        for item in items:
            answer = worker.receive(spec.timeout_s)
            if answer.get("item") != item:
                raise WorkerGone("its pipe carries something else")
            yield answer

    def _take(self) -> Worker:
        with self._lock:
            if self._closed:
                raise RunError("the reward processes are closed")
            if self._idle:
                return self._idle.pop()
            worker = Worker()
            self._all.add(worker)
            self.numbers["started"] += 1
            return worker

    def _discard(self, worker: Worker, why: str) -> None:
        with self._lock:
            self._all.discard(worker)
            self.numbers[why] += 1
        worker.kill()
