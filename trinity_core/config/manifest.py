"""Which code a run used: plugin, distribution, version and source hash of every component it names."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity_core.plugins import plugins, registration

if TYPE_CHECKING:
    from trinity_core.config.schema import RunConfig


def manifest(config: RunConfig) -> dict[str, Any]:
    """``{"plugins": {name: {distribution, version, sha256}}, "modules": {name: sha256}}`` of what ``config`` uses.

    A plugin's hash covers every source and option file of its package; ``modules`` are those that import strings name.
    Workers and joiners compare theirs with it, a resume says what changed.
    """
    versions = {info.name: info.version for info in plugins()}
    used: dict[str, dict[str, str]] = {}
    modules: dict[str, str] = {}
    for part in config.parts.values():
        if ":" in part.name:
            module = part.name.partition(":")[0]
            modules[module] = _hash_module(module)
            continue
        found = registration(part.kind, part.name)
        if found.plugin not in used:
            package = found.target.partition(":")[0].partition(".")[0]
            used[found.plugin] = {
                "distribution": found.distribution,
                "version": versions[found.plugin],
                "sha256": _hash_package(package),
            }
    return {"plugins": dict(sorted(used.items())), "modules": dict(sorted(modules.items()))}


@cache
def _hash_package(package: str) -> str:
    """sha256 over the ``.py`` and ``.yaml`` files of a package, in order of path."""
    spec = importlib.util.find_spec(package)
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    if not roots:
        return _hash_module(package)
    digest = hashlib.sha256()
    for root in roots:
        for file in sorted(f for f in root.rglob("*") if f.suffix in (".py", ".yaml") and f.is_file()):
            digest.update(f"{file.relative_to(root).as_posix()}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _hash_module(module: str) -> str:
    """sha256 of a module's file; "no source" where it has none (a module made at run time)."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None and (spec := importlib.util.find_spec(module)) is not None:
        file = spec.origin
    path = Path(file) if file else None
    return hashlib.sha256(path.read_bytes()).hexdigest() if path and path.is_file() else "no source"
