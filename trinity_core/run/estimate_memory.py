"""Peak memory by phase of what this process does: its resident set, and what its tensors take on GPUs.

Linux keeps the highest resident set of a process (``VmHWM``) and lets it be set back (``/proc/self/clear_refs``): phases are
told apart exactly, at no cost. Where it may not be set back, a thread looks often.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trinity_core.errors import RunError

LOAD, SAMPLING, MEASURE, TRAINING = "load", "sampling", "measure", "training"
CHECKPOINT, EVALUATION = "checkpoint", "evaluation"
BETWEEN = "between"
"""What is done outside every phase."""
OFTEN_S = 0.005


@dataclass
class Peak:
    """Highest bytes: ``host`` resident in this process, ``gpu`` allocated on all its GPUs."""

    host: int = 0
    gpu: int = 0

    def raise_to(self, other: Peak) -> None:
        self.host, self.gpu = max(self.host, other.host), max(self.gpu, other.gpu)


@dataclass
class Done:
    """One thing that was done in a phase."""

    phase: str
    seconds: float = 0.0
    peak: Peak = field(default_factory=Peak)
    before: int = 0
    """Bytes resident when it began."""
    size: dict[str, float] = field(default_factory=dict)
    """What its seconds and bytes depend on; counted at :meth:`Phases.settle`."""
    count: Callable[[], Mapping[str, float]] | None = None


class Memory:
    """The highest resident set since :meth:`again`."""

    def __init__(self, *, look: bool = False) -> None:
        """``look``: look often, whatever the kernel allows."""
        self._seen: Looking | None = None
        if not Path("/proc/self/statm").exists():
            raise RunError(
                "memory by phase is read from /proc, and this system has none. trinity plan --dry prints what can be counted"
            )
        if look or not _set_back():
            self._seen = Looking()

    def highest(self) -> int:
        return self._seen.highest if self._seen is not None else _status("VmHWM")

    def again(self) -> None:
        if self._seen is not None:
            self._seen.highest = resident()
        else:
            _set_back()

    def close(self) -> None:
        if self._seen is not None:
            self._seen.over.set()
            self._seen.join()


class Looking(threading.Thread):
    """Looks at the resident set every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(name="memory", daemon=True)
        self.highest = resident()
        self.over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(OFTEN_S):
            self.highest = max(self.highest, resident())


class Phases:
    """Seconds and peak memory of each thing done, by phase. Phases may overlap; a byte counts in each that is open."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.peaks: dict[str, Peak] = {}
        self.done: list[Done] = []
        self._open: list[Done] = []
        self._lock = threading.Lock()
        self.memory.again()
        _gpu_again()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[Done]:
        """What the body does counts as ``name``."""
        one = Done(name)
        with self._lock:
            self._turn()
            self._open.append(one)
        one.before = resident()
        began = time.perf_counter()
        try:
            yield one
        finally:
            one.seconds = time.perf_counter() - began
            with self._lock:
                self._turn()
                self._open.remove(one)
                self.done.append(one)

    def watch(
        self, live: Any, method: str, name: str, size: Callable[..., Callable[[], Mapping[str, float]]] | None = None
    ) -> None:
        """Whatever calls ``live.method`` opens phase ``name`` meanwhile. ``size(result, *args)`` gives what counts how much it
        was, later: counting takes no time of what is timed."""
        function = getattr(live, method)

        def told(one: Done, result: Any, args: tuple[Any, ...]) -> Any:
            one.count = size(result, *args) if size is not None else None
            return result

        async def waiting(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name) as one:
                result = await function(*args, **kwargs)
            return told(one, result, args)

        def computing(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name) as one:
                result = function(*args, **kwargs)
            return told(one, result, args)

        async def streaming(*args: Any, **kwargs: Any) -> Any:
            found = []
            with self.phase(name) as one:
                async with contextlib.aclosing(function(*args, **kwargs)) as results:
                    async for result in results:
                        found.append(result)
                        yield result
            told(one, found, args)

        watched: Callable[..., Any] = computing
        if inspect.iscoroutinefunction(function):
            watched = waiting
        elif inspect.isasyncgenfunction(function):
            watched = streaming
        # past a frozen dataclass too: a component may be its own live object
        object.__setattr__(live, method, watched)

    def settle(self) -> None:
        """Count the sizes of all that was done so far."""
        for one in self.done:
            if one.count is not None:
                one.size, one.count = dict(one.count()), None

    def peak(self) -> Peak:
        """Over all phases, and what was between them."""
        with self._lock:
            self._turn()
        highest = Peak()
        for one in self.peaks.values():
            highest.raise_to(one)
        return highest

    def _turn(self) -> None:
        """A phase begins or ends: what was highest until now belongs to those that were open."""
        highest = Peak(self.memory.highest(), _gpu_highest())
        for one in self._open:
            one.peak.raise_to(highest)
        for name in {one.phase for one in self._open} or {BETWEEN}:
            self.peaks.setdefault(name, Peak()).raise_to(highest)
        self.memory.again()
        _gpu_again()


def resident() -> int:
    """Bytes resident in this process now."""
    return _status("VmRSS")


def children() -> int:
    """Highest bytes resident in all processes under this one together."""
    parents: dict[int, list[tuple[int, int]]] = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = _fields(path)
            parents.setdefault(int(fields["PPid"]), []).append((int(fields["Pid"]), _bytes(fields, "VmHWM")))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    total, open_ = 0, [int(_fields(Path("/proc/self/status"))["Pid"])]
    while open_:
        for pid, size in parents.get(open_.pop(), ()):
            total += size
            open_.append(pid)
    return total


def room() -> tuple[int, int]:
    """Bytes of the host that this process may have (what is free and what it holds; less where a container allows less), and of
    its GPUs."""
    fields = _fields(Path("/proc/meminfo"))
    host = _bytes(fields, "MemAvailable") + resident()
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else ""
    if text.isdigit():
        host = min(host, int(text))
    cuda = _cuda()
    return host, 0 if cuda is None else sum(_free(cuda, device) for device in range(cuda.device_count()))


def _free(cuda: Any, device: int) -> int:
    free, _ = cuda.mem_get_info(device)
    return int(free + cuda.memory_reserved(device))


def _cuda() -> Any:
    """``torch.cuda`` where something has begun to use it, else ``None``: nothing is loaded to look."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_available() and cuda.is_initialized() else None


def _gpu_highest() -> int:
    cuda = _cuda()
    return 0 if cuda is None else sum(cuda.max_memory_allocated(device) for device in range(cuda.device_count()))


def _gpu_again() -> None:
    cuda = _cuda()
    for device in range(cuda.device_count() if cuda is not None else 0):
        cuda.reset_peak_memory_stats(device)


def _set_back() -> bool:
    """Set the highest resident set back to the present one; whether the kernel allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(name: str) -> int:
    return _bytes(_fields(Path("/proc/self/status")), name)


def _bytes(fields: Mapping[str, str], name: str) -> int:
    return int(fields.get(name, "0 kB").split()[0]) * 1024


def _fields(path: Path) -> dict[str, str]:
    return dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
