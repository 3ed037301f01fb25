"""Secrets never enter config: they would be saved, tracked and printed. A component names the variable that holds one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trinity_core.errors import ConfigError

KEY = re.compile(
    r"(?:.*_)?(?:api_?key|password|passwd|secret)\Z|(?:(?:access|auth|bearer|hf|api)_)?token\Z", re.IGNORECASE
)
"""Keys that hold a secret: ``api_key``, ``wandb_api_key``, ``token``, ``hf_token``, ``password``, ``secret`` …"""
URL = re.compile(r"([a-z][a-z0-9+.-]*://[^/\s:@]*):([^@/\s]+)@", re.IGNORECASE)
"""A URL with a password."""
HIDDEN = "<redacted>"


def refuse_secrets(node: Any, path: str = "") -> None:
    """Raise :class:`ConfigError` for the first secret anywhere in plain ``node``; the value is never repeated."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            where = f"{path}.{key}".strip(".")
            if KEY.match(str(key)):
                raise ConfigError(
                    f"{where}: a secret must not stand in config, which is saved with the run. Put it into an environment variable "
                    f"and name that: {where}_env=MY_VARIABLE, where the component has such an option"
                )
            refuse_secrets(value, where)
    elif isinstance(node, (list, tuple)):
        for index, value in enumerate(node):
            refuse_secrets(value, f"{path}.{index}")
    elif isinstance(node, str) and (found := URL.search(node)):
        raise ConfigError(
            f"{path}: the URL {found[1]}:…@ has a password, and config is saved with the run. Leave it out and name the environment "
            f"variable that holds it: {path.rpartition('.')[0]}.password_env=MY_VARIABLE".replace(": .", ": ")
        )


def redact(node: Any) -> Any:
    """A copy of plain ``node`` with secrets hidden, for everything that is written or sent."""
    if isinstance(node, Mapping):
        return {
            key: HIDDEN if KEY.match(str(key)) and value is not None else redact(value) for key, value in node.items()
        }
    if isinstance(node, (list, tuple)):
        return [redact(value) for value in node]
    return URL.sub(rf"\1:{HIDDEN}@", node) if isinstance(node, str) else node


def redact_words(words: list[str]) -> list[str]:
    """Command-line words with secrets hidden."""
    safe = []
    for word in words:
        key, equals, _ = word.partition("=")
        secret = equals and KEY.match(key.rpartition(".")[2].lstrip("+~"))
        safe.append(f"{key}={HIDDEN}" if secret else redact(word))
    return safe
