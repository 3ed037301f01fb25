"""The root of a run: every node that is not a component. Frozen, checked with pydantic, one default each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trinity_core.errors import ConfigError

Reduction = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]


@dataclass(frozen=True)
class Schedule:
    """A value that changes with the step: from ``start`` to ``end`` over ``steps``, then ``end``."""

    start: float
    """At the first step."""
    end: float
    """After ``steps`` of them, and from then on."""
    steps: int
    """How many steps it takes to get there."""
    shape: Literal["linear", "cosine"] = "linear"
    """A straight line, or half a cosine: slow at both ends."""


@dataclass(frozen=True)
class PeakSchedule:
    """A value that rises and falls with the step: from 0 to ``peak`` in ``warmup`` steps, along half a cosine to ``valley`` in
    ``decay`` more (0: at once), then ``valley``."""

    peak: float
    """The highest value."""
    valley: float
    """The last value."""
    warmup: int = 0
    """Steps from 0 to the peak."""
    decay: int = 0
    """Steps from the peak to the valley."""

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.decay < 0:
            raise ConfigError(f"warmup={self.warmup}, decay={self.decay}: numbers of steps are 0 or more")


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters on top of frozen base weights. Dropout is 0 in both passes."""

    rank: int = 16
    """Of the adapters: columns of A, rows of B."""
    alpha: float = 32.0
    """Adapters are added times ``alpha / rank``."""
    targets: str | tuple[str, ...] = "all-linear"
    """Names of the layers that get adapters, or one regular expression; all-linear: every linear layer but the head."""
    quantize: Literal["nf4"] | None = None
    """Keep the frozen base in 4 bits (QLoRA, arXiv:2305.14314); null: in the compute dtype."""


@dataclass(frozen=True)
class Model:
    """The policy, the same for every backend and engine."""

    path: str
    """A local folder, a hub id, or ``package:<name>`` for weights that a pip package carries."""
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """Compute dtype. auto: bfloat16 where the hardware has it, else float32. Master weights are float32 (float64 for float64)."""
    lora: Lora | None = None
    """Train adapters in place of the weights: ``'model.lora={rank: 16}'``; null: train the weights."""
    chat_template: str | None = None
    """A file with a template that replaces the tokenizer's."""


@dataclass(frozen=True)
class Optim:
    """AdamW and its schedule, the same for every backend."""

    lr: float = 1e-5
    """Learning rate after warm-up."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decay of the running means of gradient and squared gradient."""
    eps: float = 1e-8
    """Added to the root of the squared gradient's mean."""
    weight_decay: float = 0.0
    """Decoupled: each update multiplies weights by ``1 − lr × weight_decay``."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after warm-up, over all updates of the run."""
    warmup_updates: int = 0
    """First updates, over which the rate rises linearly to ``lr``."""
    min_lr_ratio: float = 0.0
    """Share of ``lr`` at which a schedule ends."""
    clip_norm: float | None = 1.0
    """A gradient with a larger norm is scaled to this one; null: none is."""
    epochs: int = 1
    """Passes over a step's lease."""
    mini_batches: int = 1
    """Updates per pass; cut by whole groups."""


@dataclass(frozen=True)
class SamplingConfig:
    """How the policy plays, the same for every engine."""

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the likeliest token. Log-probabilities are taken at the same
    one (at 1 for 0)."""
    top_p: float = 1.0
    """Sample from the likeliest tokens that together have this probability; 1: from all."""
    top_k: int = 0
    """Sample from this many likeliest tokens; 0: from all."""
    max_response: int = 128
    """Tokens of one call."""
    max_attempt_tokens: int | None = None
    """Action tokens of one attempt, over all its calls; null: ``max_response``."""
    stop: tuple[str, ...] = ()
    """Texts that end a reply, besides the end of the turn."""


@dataclass(frozen=True)
class Critic:
    """A value model, for algorithms that need one."""

    lr: float = 1e-5
    """Its learning rate; all else is as in ``optim``."""
    clip: float = 0.2
    """ε of its loss, ``½ max((V − return)², (clip(V, V_old ± ε) − return)²)``."""
    coef: float = 0.5
    """Factor of its loss."""
    warmup_steps: int = 0
    """First steps that train the critic alone."""


@dataclass(frozen=True)
class Teacher:
    """A frozen model that some algorithms learn from. Same tokenizer as the policy; its chat template may differ."""

    path: str | None = None
    """A local folder, a hub id or ``package:<name>``; null: there is none."""
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    """As ``model.dtype``."""
    chat_template: str | None = None
    """A file with a template that replaces its tokenizer's."""


@dataclass(frozen=True)
class Sync:
    """How far play may run ahead of training, and how deliveries are verified."""

    mode: Literal["ordered", "async"] = "ordered"
    """ordered: which version plays which draw is fixed. async: play goes on whenever staleness allows it."""
    interval: int = 1
    """ordered: steps between deliveries."""
    offset: int = 0
    """ordered: steps that play is ahead."""
    max_staleness: int = 0
    """async: largest trainer step minus oldest version."""
    uncorrected: bool = False
    """Train stale data without a correction, knowingly."""
    verify_every: int = 20
    """After the first three, every how many deliveries a digest is compared."""


@dataclass(frozen=True)
class Kl:
    """KL to the reference, as a term of the loss or in the reward."""

    estimator: Literal["k1", "k2", "k3", "abs", "corrected_k3"] = "k3"
    """Of KL(policy ‖ reference) at a sampled token: k1 = log-ratio, k2 = half its square, k3 = unbiased and positive, abs,
    corrected_k3."""
    coef: float | Schedule = 0.0
    """With ``target``: the first step's; it then follows the KL measured."""
    where: Literal["loss", "reward"] = "loss"
    """loss: a term that is differentiated. reward: taken off each token's credit."""
    target: float | None = None
    """KL per token (mean k1 over own action tokens, nats) that an adaptive coefficient steers for; null: ``coef`` is as given."""
    horizon: float = 10000.0
    """Attempts over which an adaptive coefficient moves by up to a fifth."""


@dataclass(frozen=True)
class Algorithm:
    """What is left of an algorithm besides its parts."""

    preset: str
    """Name of the preset, for whoever reads; ``algorithm=NAME`` selects one."""
    group_size: int = 8
    """Attempts at one task."""
    reduction: Reduction | None = None
    """How values of tokens become one loss: token_mean, seq_mean_token_mean, seq_mean_token_sum or seq_mean_token_sum_norm; null: the
    loss's own default."""
    by: Literal["attempt", "experience"] = "attempt"
    """What a sequence is in ``seq_mean_*``."""
    denominator: Literal["all", "kept"] = "all"
    """Whether tokens dropped before the step count in denominators."""
    kl: Kl = field(default_factory=Kl)
    entropy_coef: float | Schedule = 0.0
    """Bonus: positive raises entropy."""
    mask_truncated: bool = False
    """Leave attempts that ran out of tokens out of every term (they stay in baselines)."""
    old_logp: Literal["auto", "forward", "measure", "sampler"] = "auto"
    """Where old log-probabilities come from. auto: the training forward when a step has one update (ratio exactly 1), else
    measured before the first update."""


@dataclass(frozen=True)
class Explorer:
    """How attempts are scheduled."""

    order: Literal["lockstep", "arrival"] = "lockstep"
    """lockstep: waves are sorted, so that a seed gives the same run. arrival: requests go as they come, and nobody
    waits."""
    max_concurrent: int = 256
    """Attempts that run at once."""
    wave: int = 64
    """Largest number of requests handed to the engine together."""
    attempt_timeout_s: float | None = 600.0
    """arrival: wall-clock limit of one attempt."""
    max_calls: int = 64
    """Calls of one attempt; past it the attempt faults (the limit that lockstep uses, being the same every time)."""
    retries: int = 1
    """Times a faulted attempt is played again."""
    min_attempts: int = 2
    """Scored attempts below which a group is voided."""
    max_draws: int = 20
    """Draws per step, in multiples of groups_per_step, before a step that will not fill is trained short."""
    when_short: Literal["train", "stop"] = "train"
    """What becomes of a step that ``max_draws`` did not fill: trained with fewer groups, or the run stops."""
    reward_workers: int = 1
    """Processes for rewards and operators that compute."""
    place_ttl_s: float = 60.0
    """A draw's place falls back this long after its explorer's last heartbeat."""


@dataclass(frozen=True)
class Trainer:
    """How steps are leased."""

    max_uses: int = 1
    """Steps that may use a group."""
    lease_ttl_s: float = 300.0
    """A lease falls back this long after its trainer's last heartbeat."""
    wait_s: float = 3600.0
    """Longest wait for groups; ends earlier when no explorer is alive."""


@dataclass(frozen=True)
class Checkpointing:
    """What a run resumes from."""

    every: int = 10
    """Steps; 0: only at the end."""
    keep: int = 2
    """How many stay; older ones are removed."""
    background: bool = True
    """Write from copies while the next step goes on: the trained weights and their optimizer state twice in memory until it is
    written. false: the step waits for the disk."""


@dataclass(frozen=True)
class Evaluation:
    """Pinned to a version; never through buffer or selector."""

    every: int = 0
    """Steps between evaluations; 0: only before and after."""
    before: bool = True
    """Evaluate before the first step."""
    after: bool = True
    """Evaluate after the last step."""
    attempts: int = 1
    """Attempts per task; 1 with temperature 0 is greedy accuracy."""
    temperature: float = 0.0
    """Of evaluations alone; 0 takes the likeliest token."""
    limit: int | None = None
    """Rows of each taskset; null: all."""


@dataclass(frozen=True)
class Slot:
    """What the kernel knows of an entry of a plural node."""

    weight: float = 1.0
    """tasksets: its share of the draws, to the others. rewards: its factor in the sum."""


@dataclass(frozen=True)
class RewardSlot(Slot):
    """What the kernel knows of a reward's slot."""

    gate: str | None = None
    """Another reward's slot: this one counts only where that one is positive."""
    clip: tuple[float, float] | None = None
    """Lowest and highest value before weighting."""


@dataclass(frozen=True)
class Part:
    """One component of a run, as config: where it stands, what it is, and its slot's keys."""

    kind: str
    name: str
    path: str
    """Node in the config, e.g. ``rewards.math``."""
    component: Any
    """The frozen dataclass."""
    slot: Slot | None = None


@dataclass(frozen=True)
class RunConfig:
    """A checked run. Built by :func:`trinity_core.config.check.check`, never by hand."""

    model: Model
    algorithm: Algorithm
    optim: Optim = field(default_factory=Optim)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    critic: Critic | None = None
    teacher: Teacher = field(default_factory=Teacher)
    sync: Sync = field(default_factory=Sync)
    explorer: Explorer = field(default_factory=Explorer)
    trainer: Trainer = field(default_factory=Trainer)
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    eval: Evaluation = field(default_factory=Evaluation)
    mode: Literal["both", "explore", "train", "bench"] = "both"
    """both: play and train in this process. train, explore: one of them, meeting others in the buffer. bench: evaluate and
    stop."""
    seed: int = 0
    """Of everything that is drawn."""
    steps: int = 10
    """Steps of the whole run, those before a resume among them."""
    groups_per_step: int = 8
    """Tasks that one step trains on, each with ``algorithm.group_size`` attempts."""
    threads: int | None = None
    """CPU threads for the model; null: the library's choice."""
    out: str | None = None
    """Run folder; null: ``runs/<date>/<time>``."""
    resume: str | None = None
    """A run folder to go on with."""
    resume_config: Literal["refuse", "new"] = "refuse"
    """resume: what to do with differences that nobody typed. (An old value is kept by typing it.)"""
    join: str | None = None
    """explore: the run folder of the trainer to play for."""
    stages: tuple[str, ...] = ()
    """Recipes that are run one after the other, each from the weights of the one before."""
    over: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Words for one stage alone, by its name or number."""
    parts: Mapping[str, Part] = field(default_factory=dict)
    """Every component by its node: ``loss``, ``rewards.math``, ``eval.tasksets.heldout``, ``models.judge.engine``."""

    def part(self, path: str) -> Any:
        """The component at ``path``, or ``None``."""
        found = self.parts.get(path)
        return found.component if found else None

    def slots(self, node: str) -> dict[str, Part]:
        """The components of a plural node, by slot, in order: ``slots("rewards")``."""
        prefix = node + "."
        return {path.removeprefix(prefix): part for path, part in self.parts.items() if path.startswith(prefix)}
