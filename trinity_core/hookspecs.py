"""Every hook a plugin can implement. Names map to import strings, so nothing heavy loads.

All hooks but :func:`trinity_install_hint` are called once, at discovery. A registering hook returns
``{"name": "module:attr"}``; ``name`` is what a config selects, ``module:attr`` is imported when a run uses it.
"""

from __future__ import annotations

from collections.abc import Mapping

from trinity_core.markers import hookspec


@hookspec
def trinity_conf() -> str:  # type: ignore[empty-body]
    """At discovery: the root of this plugin's config groups, e.g. ``"pkg://trinity_sql.conf"``."""


@hookspec(firstresult=True)
def trinity_install_hint(kind: str, name: str) -> str | None:
    """When a component is missing: the distribution that would provide ``kind/name``; the first answer wins."""


@hookspec
def trinity_tasksets() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: sources of tasks. Contract: :class:`trinity_core.protocols.Taskset`."""


@hookspec
def trinity_selectors() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: ways to pick the next tasks. Contract: :class:`trinity_core.protocols.Selector`."""


@hookspec
def trinity_workflows() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: ways to play one task. Contract: :class:`trinity_core.protocols.Workflow`."""


@hookspec
def trinity_environments() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: worlds that ``multi_turn`` can play. Contract: :class:`trinity_core.protocols.Environment`."""


@hookspec
def trinity_rewards() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: ways to score an attempt or a group. Contract: :class:`trinity_core.protocols.Reward`."""


@hookspec
def trinity_operators() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: filters and maps of groups between play and buffer. Contract: :class:`trinity_core.protocols.Operator`."""


@hookspec
def trinity_buffers() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: ledgers of groups. Contract: :class:`trinity_core.protocols.Buffer`."""


@hookspec
def trinity_sample_strategies() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: ways to pick the groups of the next step. Contract: :class:`trinity_core.protocols.SampleStrategy`."""


@hookspec
def trinity_advantages() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: ways to turn scores into credit. Contract: :class:`trinity_core.protocols.Advantage`."""


@hookspec
def trinity_losses() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: policy losses. Contract: :class:`trinity_core.protocols.Loss`."""


@hookspec
def trinity_corrections() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: weights and masks for tokens whose sampler and trainer disagree. Contract: :class:`trinity_core.protocols.Correction`."""


@hookspec
def trinity_backends() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: owners of trained weights. Contract: :class:`trinity_core.protocols.Backend`."""


@hookspec
def trinity_engines() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: owners of sampling weights. Contract: :class:`trinity_core.protocols.Engine`."""


@hookspec
def trinity_runtimes() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: placements of explorer, buffer and trainer. Contract: :class:`trinity_core.protocols.Runtime`."""


@hookspec
def trinity_trackers() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: watchers of a run. Contract: :class:`trinity_core.protocols.Tracker`."""


@hookspec
def trinity_commands() -> Mapping[str, str]:  # type: ignore[empty-body]
    """At discovery: subcommands of ``trinity``. Contract: :class:`trinity_core.protocols.Command`."""
