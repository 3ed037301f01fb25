"""The one table of component kinds. A kind is added here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of component: how it is named, selected and checked."""

    name: str
    """Singular noun: the config group, and the node of a kind that a run has one of."""
    hook: str
    """The hook that registers components of this kind."""
    protocol: str
    """Name of its protocol class in :mod:`trinity_core.protocols`."""
    says: str
    """What a component of this kind does: completes "a component …"."""
    plural: str | None = None
    """Node of a kind that a run may have many of: a map from slot to component. ``None``: one per run."""
    slot_keys: tuple[str, ...] = ()
    """Keys of a slot that belong to the kernel, not to the component."""
    optional: bool = False
    """Whether a run may have none (``kind=null``)."""
    provisional: bool = False
    """No component of this kind ships yet: its protocol may still change."""

    @property
    def node(self) -> str:
        """The key under which a composed config holds this kind."""
        return self.plural or self.name


# fmt: off
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("taskset", "trinity_tasksets", "Taskset", "is a map-style source of tasks, the same every time", "tasksets", ("weight",)),
        Kind("selector", "trinity_selectors", "Selector", "picks which tasks come next"),
        Kind("workflow", "trinity_workflows", "Workflow", "plays one task once with the policy", optional=True),
        Kind("environment", "trinity_environments", "Environment", "is a world that multi_turn can play", optional=True),
        Kind("reward", "trinity_rewards", "Reward", "scores an attempt, or a group against itself", "rewards", ("weight", "gate", "clip")),
        Kind("operator", "trinity_operators", "Operator", "filters, maps or augments groups between play and buffer", "operators"),
        Kind("buffer", "trinity_buffers", "Buffer", "is the ledger of groups"),
        Kind("sample_strategy", "trinity_sample_strategies", "SampleStrategy", "picks which stored groups make the next step"),
        Kind("advantage", "trinity_advantages", "Advantage", "turns scores into credit", optional=True),
        Kind("loss", "trinity_losses", "Loss", "turns credit and log-probabilities into unreduced terms"),
        Kind("correction", "trinity_corrections", "Correction", "weights or drops tokens whose sampler and trainer disagree", "corrections"),
        Kind("backend", "trinity_backends", "Backend", "owns the trained weights"),
        Kind("engine", "trinity_engines", "Engine", "owns sampling weights: tokens in, tokens and log-probabilities out", optional=True),
        Kind("runtime", "trinity_runtimes", "Runtime", "places explorer, buffer and trainer"),
        Kind("tracker", "trinity_trackers", "Tracker", "watches a run", "trackers"),
        Kind("command", "trinity_commands", "Command", "is a subcommand of trinity", provisional=True),
    )
}
# fmt: on
"""Every kind, by name. ``command`` has no config group: it is reached from the command line only."""

CONFIG_KINDS: dict[str, Kind] = {name: kind for name, kind in KINDS.items() if name != "command"}
"""The kinds that a run's config selects."""

DISTRIBUTION_PREFIX = "trinity-plugin-"
