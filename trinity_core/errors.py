"""Errors that say what is wrong, where, and what to do about it.

Every error raised on purpose is a :class:`TrinityError`; each is also the closest standard exception, and pickles.
The command line prints the message alone and exits with ``exit_code``.
"""

from __future__ import annotations


class TrinityError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = 1


class ConfigError(TrinityError, ValueError):
    """The config of a run was refused; nothing was loaded or written."""

    exit_code = 2


class ComponentNotFound(ConfigError, LookupError):
    """No installed plugin provides the named component."""


class PluginLoadError(TrinityError, ImportError):
    """An installed plugin, or a module that a component names, could not be used."""

    exit_code = 2


class DataError(TrinityError, ValueError):
    """A task, an experience or a stored group breaks the data contract."""


class ModelError(TrinityError, OSError):
    """A model or tokenizer could not be found or used."""


class LedgerError(TrinityError, RuntimeError):
    """The ledger refused an event: a stale fence, a lost lease, a locked or unreadable database."""


class Fenced(LedgerError):
    """A newer lineage has begun: this writer belongs to a trainer that was replaced. An explorer may ``join()`` again."""


class LeaseLost(LedgerError):
    """A lease on groups, or a draw's place, fell back and its holder came too late."""


class CheckpointError(TrinityError, RuntimeError):
    """A checkpoint could not be written or read."""


class DeliveryError(TrinityError, RuntimeError):
    """The engine does not hold the weights that the trainer sent."""


class RunError(TrinityError, RuntimeError):
    """A run cannot go on; the message names the step and the way on."""
