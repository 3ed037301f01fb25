"""Parts of an algorithm that would not learn what they seem to: no gradient, no credit, a ratio of always 1, or one taken twice."""

from __future__ import annotations

from trinity_core.config.schema import RunConfig, Schedule
from trinity_core.errors import ConfigError

LEARNS_FROM_CREDIT_ALONE = frozenset({"inert_at_zero_advantage", "policy_gradient_at_ratio_1"})
"""Claims of a loss that has nothing to learn where the credit is 0, as it is of attempts that were given."""


def refuse_what_would_not_be_learned(config: RunConfig) -> None:
    """Raise :class:`ConfigError` for the first combination of advantage, loss, KL and corrections that has no such effect."""
    _credit(config)
    _imitation(config)
    _kl(config)
    _given(config)
    _updates(config)
    _old_logp(config)
    _corrections(config)


def _credit(config: RunConfig) -> None:
    algorithm, loss, advantage = config.algorithm, config.part("loss"), config.part("advantage")
    name = config.parts["loss"].name
    if advantage is None and type(loss).reads_advantage:
        raise ConfigError(f"advantage: loss {name!r} learns from credit, and nothing gives any. Write advantage=grpo")
    if advantage is not None and not type(loss).reads_advantage and not type(advantage).selects:
        instead = (
            "Write advantage=raft, which keeps what succeeded, or advantage=null"
            if type(loss).imitates
            else "Write advantage=null"
        )
        raise ConfigError(
            f"advantage: loss {name!r} reads no credit, so {config.parts['advantage'].name!r} would change nothing. {instead}"
        )
    if advantage is not None and "needs_group" in advantage.claims and algorithm.group_size < 2:
        raise ConfigError(
            f"algorithm.group_size: advantage {config.parts['advantage'].name!r} compares the attempts of a group, so {algorithm.group_size} "
            "gives no credit at all. Write algorithm.group_size=8, or advantage=reinforce"
        )
    compares = advantage is not None and ("needs_group" in advantage.claims or "greedy" in advantage.needs())
    if compares and config.sampling.temperature == 0 and plays(config):
        raise ConfigError(
            f"sampling.temperature: at 0 every attempt at a task is the greedy one, and advantage {config.parts['advantage'].name!r} compares "
            "attempts: no credit at all. Write sampling.temperature=1"
        )
    makers = [part.name for part in config.slots("operators").values() if type(part.component).makes_pairs]
    if makers and algorithm.group_size < 2 and plays(config):
        raise ConfigError(
            f"algorithm.group_size: operator {makers[0]!r} makes pairs of the attempts of a group, and a group of one has no two. "
            "Write algorithm.group_size=8"
        )
    if makers and "pairs" not in loss.needs():
        raise ConfigError(
            f"operators: {makers[0]!r} leaves a chosen and a rejected attempt of each group, which get no credit, and loss {name!r} does not "
            "learn from pairs. Write loss=dpo, or operator=[]"
        )
    if loss.unit != "token" and algorithm.reduction is not None:
        raise ConfigError(
            f"algorithm.reduction: loss {name!r} gives one value per {loss.unit}, which is averaged over {loss.unit}s; "
            f"{algorithm.reduction} is for values per token. Write algorithm.reduction=null"
        )


def _imitation(config: RunConfig) -> None:
    """Who imitates without an advantage needs data that is worth it."""
    loss, name = config.part("loss"), config.parts["loss"].name
    if config.part("advantage") is not None or not type(loss).imitates or config.mode not in ("both", "explore"):
        return
    given = {role for part in config.slots("tasksets").values() for role in part.component.gives()}
    if "expert" not in given:
        raise ConfigError(
            f"tasksets: loss {name!r} without an advantage imitates whatever it is given, and no taskset brings anything but the "
            "policy's own words. Write taskset=[conversations] tasksets.conversations.path=FILE, or advantage=raft, which keeps what "
            "succeeded"
        )


def _given(config: RunConfig) -> None:
    """Credit, KL and entropy are of what the policy said itself: where nothing is sampled they are 0. What is played beside what is
    given is not worth imitating as it stands."""
    algorithm, loss, advantage = config.algorithm, config.part("loss"), config.part("advantage")
    played = [slot for slot, part in config.slots("tasksets").items() if not part.component.gives()]
    if played and type(loss).imitates and advantage is None and config.mode in ("both", "explore"):
        raise ConfigError(
            f"advantage: loss {config.parts['loss'].name!r} without an advantage imitates what is played of tasksets.{played[0]} too, failures "
            f"as well. Write advantage=raft, which keeps what succeeded, or ~tasksets.{played[0]}"
        )
    given = [slot for slot, part in config.slots("tasksets").items() if part.component.gives()]
    if (
        given
        and advantage is not None
        and LEARNS_FROM_CREDIT_ALONE & loss.claims
        and config.mode in ("both", "explore")
    ):
        raise ConfigError(
            f"advantage: {config.parts['advantage'].name!r} gives credit to what the policy said, and tasksets.{given[0]} brings its attempts "
            f"along: loss {config.parts['loss'].name!r} would learn nothing from them and divide by their tokens. Write algorithm=mix (or "
            "algorithm=sft, algorithm=dpo for pairs)" + (f", or ~tasksets.{given[0]}" if played else "")
        )
    if plays(config) or config.mode == "bench":
        return
    for path, coef in (("algorithm.kl.coef", algorithm.kl.coef), ("algorithm.entropy_coef", algorithm.entropy_coef)):
        if coef != 0.0:
            raise ConfigError(
                f"{path}: it is over the policy's own words, and every task brings its attempts along: it would be 0 in every step. "
                f"Write {path}=0"
            )


def _updates(config: RunConfig) -> None:
    """A step is cut into updates by whole groups; some step must train the policy."""
    optim = config.optim
    if config.critic is not None and config.critic.warmup_steps >= config.steps > 0 and config.mode != "bench":
        raise ConfigError(
            f"critic.warmup_steps: {config.critic.warmup_steps} of {config.steps} steps would train the critic alone, and none the policy. "
            f"Write steps={config.critic.warmup_steps + 10}, or critic.warmup_steps=0"
        )
    if optim.mini_batches > config.groups_per_step and not config.slots("operators") and config.mode != "bench":
        raise ConfigError(
            f"optim.mini_batches: an update has whole groups, and {config.groups_per_step} a step (groups_per_step) are at most as many "
            f"updates, not {optim.mini_batches}. Write optim.mini_batches={config.groups_per_step}"
        )


def _kl(config: RunConfig) -> None:
    algorithm, kl = config.algorithm, config.algorithm.kl
    lowest = min(kl.coef.start, kl.coef.end) if isinstance(kl.coef, Schedule) else kl.coef
    if lowest < 0:
        raise ConfigError(
            f"algorithm.kl.coef: {lowest:g} would push the policy away from the reference. Write algorithm.kl.coef={-lowest:g}"
        )
    if kl.coef != 0.0 and kl.estimator == "corrected_k3" and kl.where == "reward":
        raise ConfigError(
            "algorithm.kl.estimator: corrected_k3 differentiates its ratio, and what is in the reward has no gradient. Write "
            "algorithm.kl.estimator=k1 (or k3), or algorithm.kl.where=loss"
        )
    advantage = config.part("advantage")
    if kl.coef != 0.0 and kl.where == "reward" and advantage is not None and not type(advantage).reads_reward:
        raise ConfigError(
            f"algorithm.kl.where: advantage {config.parts['advantage'].name!r} reads no reward, so a KL in it would change nothing. Write "
            "algorithm.kl.where=loss algorithm.kl.estimator=k3"
        )
    if kl.coef != 0.0 and kl.where == "reward" and advantage is None:
        raise ConfigError(
            "algorithm.kl.where: without an advantage no reward reaches the loss, and so no KL in it. Write algorithm.kl.where=loss"
        )
    attempts = config.groups_per_step * algorithm.group_size
    if kl.target is not None and kl.horizon <= 0.2 * attempts:
        raise ConfigError(
            f"algorithm.kl.horizon: {kl.horizon:g} with {attempts} attempts a step could bring the coefficient to 0 in one step. "
            f"Write at least {attempts}"
        )
    if kl.target is not None and (kl.coef == 0.0 or isinstance(kl.coef, Schedule)):
        raise ConfigError(
            "algorithm.kl.target: an adaptive coefficient starts from a number above 0. Write algorithm.kl.coef=0.02, or "
            "algorithm.kl.target=null"
        )
    if kl.coef != 0.0 and kl.estimator == "k1" and kl.where == "loss":
        raise ConfigError(
            "algorithm.kl.estimator: k1 as a term of the loss has no gradient on-policy. Write algorithm.kl.estimator=k3 (or k2), "
            "or algorithm.kl.where=reward"
        )


def _old_logp(config: RunConfig) -> None:
    """``old_logp=forward`` has no old log-probabilities before the forward, and a ratio of 1 in every one."""
    algorithm, loss, advantage = config.algorithm, config.part("loss"), config.part("advantage")
    if algorithm.old_logp != "forward":
        return
    if algorithm.kl.target is not None:
        raise ConfigError(
            "algorithm.old_logp: an adaptive KL coefficient reads the KL under the policy that began the step, before the forward. "
            "Write algorithm.old_logp=auto"
        )
    early = ["KL in the reward"] if algorithm.kl.coef != 0.0 and algorithm.kl.where == "reward" else []
    if advantage is not None and "old_logp" in advantage.needs():
        early.append(f"advantage {config.parts['advantage'].name!r}")
    if early:
        raise ConfigError(
            f"algorithm.old_logp: {early[0]} reads log-probabilities before the first forward. Write algorithm.old_logp=auto"
        )
    updates = config.optim.epochs * config.optim.mini_batches
    if updates > 1 and "reads_old_logp" in loss.claims and not config.slots("corrections"):
        raise ConfigError(
            f"algorithm.old_logp: forward is the policy of each of a step's {updates} updates itself, so the ratio of loss "
            f"{config.parts['loss'].name!r} would always be 1. Write algorithm.old_logp=auto"
        )


def _corrections(config: RunConfig) -> None:
    """The ratio of trainer to sampler counts once, and there is something for it to weigh."""
    slots, loss, name = config.slots("corrections"), config.part("loss"), config.parts["loss"].name
    if slots and loss.unit != "token":
        knowingly = " sync.uncorrected=true" if _stale(config) else ""
        raise ConfigError(
            f"corrections: they weigh tokens, and loss {name!r} gives one value per {loss.unit}. Write correction=[]{knowingly}"
        )
    weighing = [
        slot for slot, part in slots.items() if type(part.component).weighs and type(part.component).needs_sampler
    ]
    if weighing and "sampler_logp" in loss.needs():
        raise ConfigError(
            f"corrections.{weighing[0]}: loss {name!r} has the ratio to the policy that sampled itself, which would count twice. Write "
            "correction=[]"
        )
    if len(weighing) > 1:
        raise ConfigError(
            f"corrections.{weighing[1]}: it weighs by the ratio of trainer to sampler, and so does corrections.{weighing[0]}: the ratio would "
            f"count twice. Write correction=[{slots[weighing[0]].name}]"
        )
    if weighing and config.algorithm.old_logp == "sampler":
        raise ConfigError(
            f"corrections.{weighing[0]}: with algorithm.old_logp=sampler old and sampler are one, so every weight would be 1. Write "
            "algorithm.old_logp=auto, or correction=[]"
        )


def refuse_uncorrected_staleness(config: RunConfig) -> None:
    """Whoever learns from older policies corrects for it, or says that nothing shall."""
    sync = config.sync
    if sync.mode == "ordered" and sync.max_staleness:
        raise ConfigError(
            "sync.max_staleness: only an asynchronous run has a staleness bound. Write sync.mode=async, or use sync.offset"
        )
    if sync.mode == "async" and (sync.offset or sync.interval != 1):
        raise ConfigError(
            "sync.offset, sync.interval: these order a run. Write sync.mode=ordered, or use sync.max_staleness"
        )
    stale = _stale(config)
    if not stale or sync.uncorrected or config.slots("corrections") or not plays(config) or _own_ratio(config):
        return
    fixes = ["correction=[truncated_is]"] if config.part("loss").unit == "token" else []
    raise ConfigError(
        f"{stale[0].partition('=')[0]}: with {' '.join(stale)} the trainer learns from older policies, and nothing corrects for it. Write "
        + "\n  ".join(["one of" if fixes else "", *fixes, "sync.uncorrected=true"]).lstrip("\n ")
    )


def _stale(config: RunConfig) -> list[str]:
    """The words that let the trainer learn from an older policy."""
    sync = config.sync
    values = (
        ("sync.offset", sync.offset, 0),
        ("sync.interval", sync.interval, 1),
        ("sync.max_staleness", sync.max_staleness, 0),
        ("trainer.max_uses", config.trainer.max_uses, 1),
    )
    return [f"{path}={value}" for path, value, fresh in values if value != fresh]


def _own_ratio(config: RunConfig) -> bool:
    """Whether the loss weighs by its ratio to the policy that sampled, however old that is."""
    loss = config.part("loss")
    if "sampler_logp" in loss.needs():
        return True
    ratio = {"reads_old_logp", "policy_gradient_at_ratio_1"} <= loss.claims
    return ratio and config.algorithm.old_logp == "sampler"


def plays(config: RunConfig) -> bool:
    """Whether some of the run's data is sampled: not all of its tasks bring their attempts along."""
    tasksets = config.slots("tasksets").values()
    return config.mode == "train" or not tasksets or not all(part.component.gives() for part in tasksets)
