"""The user's project: where their option files and modules are looked for."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from trinity_core.errors import ConfigError

FIXED = ("run.yaml", "run.yml")
"""The root of a run, which no project replaces."""


def find_project(start: Path | None = None) -> Path | None:
    """The nearest folder from ``start`` (default: here) upwards with a ``conf/`` and either ``conf/.trinity`` or
    ``[tool.trinity]`` in its ``pyproject.toml``."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "conf").is_dir() and (
            (folder / "conf" / ".trinity").exists() or _claims(folder / "pyproject.toml")
        ):
            _refuse_fixed(folder / "conf")
            return folder
    return None


def activate(project: Path | None, cwd: Path | None = None) -> None:
    """Put the project's folder, then the current one, first on ``sys.path``: ``loss=my_file:Mine`` finds ``my_file.py``.
    A console script has neither."""
    folders = [str(folder.resolve()) for folder in (project, cwd or Path.cwd()) if folder is not None]
    wanted = list(dict.fromkeys(folders))
    if sys.path[: len(wanted)] != wanted:
        sys.path[:] = wanted + [path for path in sys.path if path not in wanted]


def replaced(project: Path | None, shipped: Path) -> list[str]:
    """Files of the project that stand in for shipped ones, relative to ``conf/``."""
    if project is None:
        return []
    conf = project / "conf"
    files = (file.relative_to(conf) for file in conf.rglob("*.yaml"))
    return sorted(str(file) for file in files if (shipped / file).exists())


def _claims(pyproject: Path) -> bool:
    if not pyproject.is_file():
        return False
    try:
        return "trinity" in tomllib.loads(pyproject.read_text(encoding="utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{pyproject}: cannot be read: {error}") from error


def _refuse_fixed(conf: Path) -> None:
    for name in (*FIXED, "hydra"):
        if (conf / name).exists():
            raise ConfigError(
                f"{conf / name}: this cannot be replaced. Put your values into {conf / 'recipe'}/NAME.yaml and run recipe=NAME"
            )
