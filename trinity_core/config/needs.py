"""What an algorithm reads, against what backend, data and auxiliary engines give: met before anything is loaded, or refused."""

from __future__ import annotations

from collections.abc import Iterator

from trinity_core.config.schema import RunConfig, Teacher
from trinity_core.errors import ConfigError
from trinity_core.plugins import did_you_mean

BACKEND_NEEDS = ("old_logp", "ref_logp", "teacher_logp", "teacher_logits", "entropy", "entropy_grad", "value")
"""Needs that the backend meets (``vocab:*`` too); the others come from the data."""
DATA_NEEDS = ("sampler_logp", "greedy", "expert", "pairs", "state", "step_reward", "token_reward", "returns")
"""Needs that play or the data meets. An advantage may also name an array that a workflow gave its experiences."""


def refuse_unmet_needs(config: RunConfig) -> None:
    """Everything that advantage, loss, KL, entropy and corrections read, against what the backend gives."""
    backend = config.part("backend")
    if config.critic is not None and "value" not in {need for need, _, _ in _asked(config)}:
        raise ConfigError(
            "critic: neither advantage nor loss needs a value, so nothing would train it. Write critic=null"
        )
    taught = [need for need, _, _ in _asked(config) if need in ("teacher_logp", "teacher_logits")]
    if config.teacher.path is not None and not taught:
        raise ConfigError(
            "teacher.path: neither advantage nor loss learns from a teacher. Write teacher.path=null, or algorithm=on_policy_distill"
        )
    if config.teacher.path is None and config.teacher != Teacher():
        raise ConfigError(
            "teacher: dtype and chat_template are those of teacher.path, which names none. Write teacher.path=MODEL"
        )
    _known(config)
    given = type(backend).provides
    for need, who, instead in _asked(config):
        kind = "vocab" if need.startswith("vocab:") else need
        if kind == "value" and config.critic is None:
            raise ConfigError(f"critic: {who} needs value, which a critic gives. Write critic=value_head")
        if kind in ("teacher_logp", "teacher_logits"):
            _teacher(config, kind, who)
            if "models.teacher.engine" in config.parts:
                continue
        if kind in ("expert", "pairs"):
            _data(config, kind, who)
        if (kind in BACKEND_NEEDS or kind == "vocab") and kind not in given:
            raise ConfigError(
                f"backend: {who} needs {need}, which {config.parts['backend'].name!r} does not give (it gives {', '.join(sorted(given)) or 'nothing'}). "
                f"Write backend=local, or {instead}"
            )


def _known(config: RunConfig) -> None:
    """A loss reads nothing that is not on the list, so a need that is not is a slip."""
    known = [*BACKEND_NEEDS, *DATA_NEEDS]
    loss = config.parts["loss"]
    for need in sorted(loss.component.needs()):
        if need not in known and not need.startswith("vocab:"):
            raise ConfigError(
                f"loss: {loss.name!r} needs {need!r}, which nothing gives.{did_you_mean(need, known)} Needs: {', '.join(known)}, vocab:NAME"
            )


def _teacher(config: RunConfig, need: str, who: str) -> None:
    """Somebody teaches: a model of the backend, or for log-probabilities an engine that scores."""
    engine = config.parts.get("models.teacher.engine")
    if engine is None:
        if not config.part("backend").has_teacher(config):
            raise ConfigError(f"teacher: {who} needs {need}, and there is no teacher. Write teacher.path=MODEL")
        return
    if config.part("backend").has_teacher(config):
        own = "teacher.path" if config.teacher.path is not None else f"backend {config.parts['backend'].name!r}"
        raise ConfigError(
            f"teacher: {own} and models.teacher.engine name two teachers. Drop one of them: ~models.teacher"
            + (", or teacher.path=null" if config.teacher.path is not None else "")
        )
    if need == "teacher_logits":
        raise ConfigError(
            f"models.teacher.engine: {who} needs the teacher's whole distribution, and an engine gives one token's. Write teacher.path=MODEL in its "
            "place"
        )
    if "score" not in type(engine.component).capabilities:
        raise ConfigError(
            f"models.teacher.engine: {engine.name!r} cannot score given tokens. Write teacher.path=MODEL in its place"
        )
    if config.sampling.temperature != 1.0:
        raise ConfigError(
            f"sampling.temperature: an engine scores at temperature 1, and play is at {config.sampling.temperature:g}: the two "
            "log-probabilities would not compare. Write sampling.temperature=1, or teacher.path=MODEL in the "
            "engine's place"
        )


def _data(config: RunConfig, need: str, who: str) -> None:
    """Somebody brings what was not sampled: tasks with attempts of their own, or an operator that makes pairs."""
    if config.mode == "train":
        return  # its explorers have the data
    tasksets = config.slots("tasksets")
    given = {role for part in tasksets.values() for role in part.component.gives()}
    if need == "expert" and "expert" not in given:
        raise ConfigError(
            f"tasksets: {who} needs expert data, and no taskset brings any. Write +taskset@tasksets.expert=conversations "
            "tasksets.expert.path=FILE"
        )
    makers = [part for part in config.slots("operators").values() if type(part.component).makes_pairs]
    if need == "pairs" and not makers and not {"chosen", "rejected"} <= given:
        raise ConfigError(
            f"tasksets: {who} learns from pairs of a chosen and a rejected attempt, and nothing makes any. Write "
            "taskset=[conversations] tasksets.conversations.path=FILE for given pairs, or operator=[best_worst]"
        )


def _asked(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """(need, who asks, what to write instead)"""
    algorithm = config.algorithm
    for kind in ("advantage", "loss"):
        if (part := config.parts.get(kind)) is not None:
            for need in sorted(part.component.needs()):
                yield need, f"{kind} {part.name!r}", f"another {kind}: {kind}=NAME"
    if algorithm.kl.coef != 0.0:
        yield "ref_logp", f"algorithm.kl (coef {algorithm.kl.coef})", "algorithm.kl.coef=0"
    if algorithm.entropy_coef != 0.0:
        yield "entropy_grad", f"algorithm.entropy_coef={algorithm.entropy_coef}", "algorithm.entropy_coef=0"
    if algorithm.old_logp == "measure":
        yield "old_logp", "algorithm.old_logp=measure", "algorithm.old_logp=auto"
