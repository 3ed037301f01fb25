"""The contract of each kind of component.

A component is a frozen dataclass that subclasses its protocol: its fields are its config. Methods that raise
:class:`NotImplementedError` are required; they never grow within a major version. Other methods have a working default.
What holds a connection, a pool or state is made by :meth:`Component.open`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from trinity_core.errors import LeaseLost, RunError
from trinity_core.types import (
    Attempt,
    Completion,
    Entry,
    Group,
    Key,
    Lease,
    Message,
    Receipt,
    Request,
    Result,
    Scores,
    Step,
    Task,
    UpdateResult,
    Weights,
)

if TYPE_CHECKING:
    from trinity_core.algo import AdvantageBatch, Credit, LossBatch, LossOutput, Objective, TrainBatch
    from trinity_core.config.schema import RunConfig
    from trinity_core.rollout.chat import Chat
    from trinity_core.rollout.renderer import Renderer


class RunContext:
    """What a component may know of the run that opens it. Read-only."""

    id: str
    """Identity of the run; enters group ids and nothing that is computed."""
    dir: Path
    """The run folder."""
    mode: str
    seed: int
    step: int
    """Steps completed so far."""
    config: RunConfig
    """The checked config: shared nodes ``model``, ``optim``, ``sampling``, ``critic``, ``sync`` and all the rest."""
    tokenizer: Tokenizer
    renderer: Renderer
    models: Mapping[str, Any]
    """Auxiliary models by role (``judge``, ``teacher``): live engines."""

    def log(self, name: str, value: float) -> None:
        """Add ``name`` to the metrics of the current step."""
        raise NotImplementedError

    def alarm(self, action: Literal["warn", "checkpoint", "stop"], message: str) -> None:
        """Warn everyone who watches; or also save a checkpoint after the step in hand; or also stop when it is saved."""
        raise NotImplementedError

    def rng(self, slot: str) -> np.random.Generator:
        """A generator seeded by (run seed, slot): the same in every run of one seed."""
        raise NotImplementedError


class Component:
    """Base of every protocol. Config is frozen; what lives is made by :meth:`open`."""

    def open(self, run: RunContext) -> Any:
        """Return the live object (default: this one). It may have ``close()``, ``state_dict()`` and
        ``load_state_dict(state)``; states are plain data: numbers, strings, lists, maps, numpy arrays."""
        return self


class Tokenizer:
    """Text to tokens and back; owned by the engine or backend that loaded the model."""

    vocab_size: int
    eos_ids: frozenset[int]
    """Tokens that end a reply."""
    bos_id: int | None = None
    """Token that begins every text, where the tokenizer puts one."""

    def encode(self, text: str) -> list[int]:
        """Tokens of ``text``, without special tokens added."""
        raise NotImplementedError

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        raise NotImplementedError

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, generate: bool = True
    ) -> list[int]:
        """Tokens of the whole conversation through the chat template; ``generate`` opens the assistant's turn."""
        raise NotImplementedError

    def digest(self) -> str:
        """A hash of vocabulary and chat template: equal digests render equal tokens."""
        raise NotImplementedError

    def vocabulary_digest(self) -> str:
        """A hash of the vocabulary alone: equal ones mean the same by every id (default: :meth:`digest`)."""
        return self.digest()


# --- play -------------------------------------------------------------------------------------------------------------


class Taskset(Component):
    """A map-style source of tasks, the same every time. The slot's ``weight`` is its share of the draws.

    The kernel asks for rows below ``len``, and replaces the id of each task; a row past the end is an :class:`IndexError`,
    so that ``for task in taskset`` ends.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, row: int) -> Task:
        raise NotImplementedError

    def gives(self) -> frozenset[str]:
        """Roles (*expert, chosen, rejected*) whose attempts its tasks bring along (``Task.given``). Such a task is recorded,
        not played."""
        return frozenset()


class Selector(Component):
    """Picks which tasks come next. Live objects see pass rates through :meth:`observe`."""

    def pick(
        self, draws: Sequence[int], sizes: Mapping[str, int], weights: Mapping[str, float]
    ) -> list[tuple[str, int]]:
        """(taskset slot, row) for each draw number. ``sizes`` and ``weights`` are by slot."""
        raise NotImplementedError

    def observe(self, group: Group) -> None:
        """Called once for each scored group, also those that an operator drops."""


class Workflow(Component):
    """Plays one task once with the policy; the kernel repeats it."""

    needs_reward: ClassVar[bool] = False
    """It gives no reward of its own: a run without a configured one is refused at check."""
    needs_environment: ClassVar[bool] = False
    """It plays a world: a run without an environment is refused at check."""

    async def run(self, task: Task, chat: Chat) -> Result:
        raise NotImplementedError


class Environment(Component):
    """A world. ``open`` gives one live world per attempt; ``multi_turn`` plays it."""

    async def reset(self, task: Task) -> Step:
        """Start ``task``; the step's messages open the conversation (default: the task's own)."""
        raise NotImplementedError

    async def step(self, action: str) -> Step:
        """Take the policy's reply; answer with what it sees next."""
        raise NotImplementedError

    async def close(self) -> None:
        """Give back what the attempt held. Called always, once."""


class Reward(Component):
    """Scores an attempt (``__call__``) or a whole group against itself (``group``).

    ``def`` computes: it runs in a process pool with a hard kill, built there from its config. ``async def`` waits: it runs
    on the loop with what ``open`` gave it. Return :class:`Invalid` where no score exists; raise where scoring broke.
    A plain float is taken as ``Ok(value)``.
    """

    timeout_s: ClassVar[float] = 10.0
    """Wall-clock limit for one call; past it the attempt's score is a Fault."""

    def __call__(self, attempt: Attempt) -> Any:
        raise NotImplementedError

    def group(self, attempts: Sequence[Attempt]) -> Any:
        """Scores of all attempts of a group, same length, same order. Define this *or* ``__call__``."""
        raise NotImplementedError


class Operator(Component):
    """``(group) -> [Group]``: an empty list filters it, several augment. Same rule for ``def`` and ``async def``."""

    makes_pairs: ClassVar[bool] = False
    """It sets ``Group.pairs``: a loss over pairs can do without data that brings them."""
    timeout_s: ClassVar[float] = 60.0
    """Wall-clock limit for one group; past it the run ends. A ``def`` is killed at it; an ``async def`` gets a moment of grace to
    say itself what came of its wait."""

    def __call__(self, group: Group) -> Any:
        raise NotImplementedError


# --- buffer -----------------------------------------------------------------------------------------------------------


class Buffer(Component):
    """Config of a ledger; :meth:`open` gives the :class:`Ledger`."""

    shared: ClassVar[bool] = False
    """Whether several processes can open the same ledger."""

    def open(self, run: RunContext) -> Ledger:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Event:
    """One line of the append-only history. ``group`` is "" for events that are not about a group."""

    sequence: int
    group: str
    event: str
    """*put, leased, committed, released, expired, filtered, voided, lineage, given_up*"""
    step: int
    lineage: int
    reason: str = ""
    owner: str = ""


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a checkpoint stands in the ledger."""

    step: int
    """Steps committed."""
    draw: int
    """The first draw that a resume plays again (ordered runs). Those before it have ended, or fell back with the explorer that played them alone."""
    given_up: int
    """Places that short steps gave up so far."""


@dataclasses.dataclass(frozen=True)
class Opening:
    """A draw that may start: its number, and the lease on its place."""

    draw: int
    place: str
    version: int


class Ledger:
    """Live buffer: an append-only history of groups, the gate's places, and the meeting of explorers and trainer.

    Every write carries the lineage the writer was opened with; a write of an older lineage is refused with
    :class:`~trinity_core.errors.LedgerError` (fencing). All methods are blocking, short, and safe from any thread.
    """

    lineage: int
    """The lineage this handle writes under."""

    # lineage
    def begin(self, position: Position | None, *, ordered: bool) -> int:
        """Open a new lineage (the trainer's first act) and return it. ``position`` is ``None`` for a new run. With one:
        commits of steps after ``position.step`` no longer count as uses; leases fall back; places fall back; versions
        after ``position.step`` no longer exist; of the places given up only the first ``position.given_up`` still are.
        Ordered: every group with ``draw >= position.draw`` is voided and the draw counter goes back to it. Else: groups of
        versions that no longer exist expire, whatever was trained with them did not survive either."""
        raise NotImplementedError

    def join(self) -> int:
        """Write under the newest lineage (an explorer's first act, and again after a fence moved). Returns it."""
        raise NotImplementedError

    def live_lineage(self) -> int:
        """The newest lineage. Where it is not :attr:`lineage`, this handle is fenced off and would notice at its next write."""
        raise NotImplementedError

    # groups
    def put(self, group: Group, *, place: str | None = None) -> bool:
        """Store ``group`` and free nothing: its place becomes the group's. Idempotent by id: ``False`` if it was there
        (then the place is free again). Without a place the group takes one more. Refused when ``place`` is no longer held (its lease ended and was given away)."""
        raise NotImplementedError

    def put_all(self, groups: Sequence[tuple[Group, str | None]]) -> list[bool | LeaseLost]:
        """:meth:`put` of several groups, each with its place or ``None``, in this order. What ``put`` would return for each; what it
        would refuse because the place fell back is among the answers, and the others are stored. Raises what ``put`` raises
        for any other reason (a fence, a place of another draw); groups before it may be stored then. Best as one write: what
        ends together is then stored in hardly more time than one group."""
        answers: list[bool | LeaseLost] = []
        for group, place in groups:
            try:
                answers.append(self.put(group, place=place))
            except LeaseLost as error:
                answers.append(error)
        return answers

    def drop(
        self, group_id: str, event: Literal["filtered", "voided"], reason: str, *, place: str | None = None
    ) -> None:
        """Record that a played draw gave no group (or a stored one must not be used) and free its place."""
        raise NotImplementedError

    def index(self, *, max_uses: int = 1) -> list[Entry]:
        """Groups that can be leased now: stored, not leased, not expired or voided, used less than ``max_uses`` times.
        In order of draw, then of arrival."""
        raise NotImplementedError

    def lease(self, group_ids: Sequence[str], *, owner: str, step: int, ttl_s: float) -> Lease:
        """Take these groups, all or none."""
        raise NotImplementedError

    def renew(self, lease: Lease, ttl_s: float) -> None:
        raise NotImplementedError

    def commit(self, lease: Lease, step: int) -> None:
        """The lease's groups were trained by ``step``: each gets one more use. Refused if the lease was lost."""
        raise NotImplementedError

    def release(self, lease: Lease) -> None:
        """Give the groups back unused."""
        raise NotImplementedError

    def expire(self, group_ids: Sequence[str], reason: str) -> None:
        """The only way a stored group leaves unused; frees its place."""
        raise NotImplementedError

    def read(self, group_ids: Sequence[str]) -> list[Group]:
        """Stored groups in the order asked for."""
        raise NotImplementedError

    def events(self, after: int = 0) -> Iterator[Event]:
        """The history from ``after`` on."""
        raise NotImplementedError

    # the gate
    def taken(self) -> int:
        """Places taken: draws in flight (leases alive) + groups put and not voided, nor expired unused + places given up.
        A group used again takes no new place."""
        raise NotImplementedError

    def filled(self) -> int:
        """Places taken by what has ended: :meth:`taken` without the draws in flight, at one moment."""
        taken, in_flight = self.taken(), self.in_flight()
        while (now := self.taken()) != taken:  # another explorer came in between
            taken, in_flight = now, self.in_flight()
        return max(0, taken - in_flight)

    def enter(self, owner: str, n: int, limit: int, *, version: int, ttl_s: float) -> list[Opening]:
        """Atomically start up to ``n`` draws while ``taken() < limit``; draw numbers go up by one each."""
        raise NotImplementedError

    def renew_places(self, owner: str, ttl_s: float) -> None:
        """Heartbeat of every place ``owner`` holds."""
        raise NotImplementedError

    def leave(self, place: str) -> None:
        """Free a place whose draw did not end (a closing explorer)."""
        raise NotImplementedError

    def in_flight(self, *, before_version: int | None = None) -> int:
        """Draws in flight (leases alive); with ``before_version`` only those begun under an earlier version."""
        raise NotImplementedError

    def first_in_flight(self) -> int | None:
        """The lowest draw in flight; ``None`` if there is none. Ordered trainers lease nothing behind it."""
        raise NotImplementedError

    def give_up(self, places: int, step: int, reason: str, *, taken: int | None = None) -> bool:
        """``step`` is this many groups short; their places count as taken. With ``taken`` only while as many places are
        taken: of several explorers that find the step short at once, one gives up. ``False``: nothing was given up."""
        raise NotImplementedError

    def short(self, step: int) -> int:
        """Places that ``step`` gave up, in what survived."""
        raise NotImplementedError

    def position(self, step: int) -> Position:
        """Where a checkpoint of ``step`` stands: behind the last draw begun under a version earlier than ``step``. Draws that
        :meth:`begin` has kept count as begun before the step it began at."""
        raise NotImplementedError

    # the meeting
    def announce(self, version: int, where: str) -> None:
        """The trainer published ``version``; ``where`` is a folder, or "" within one process."""
        raise NotImplementedError

    def newest(self) -> tuple[int, str] | None:
        """The newest version announced in the live lineage."""
        raise NotImplementedError

    def acknowledge(self, engine: str, version: int, evidence: str) -> None:
        """``engine`` samples from ``version`` from now on: its receipt."""
        raise NotImplementedError

    def acknowledged(self) -> dict[str, int]:
        """Last version acknowledged, by engine, in the live lineage."""
        raise NotImplementedError

    def say(self, key: str, value: str) -> None:
        """A word for the others: ``status`` of the trainer, say. Words outlive lineages; the last one said counts."""
        raise NotImplementedError

    def heard(self, key: str) -> str | None:
        """The last word said under ``key``."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what this handle holds. Twice is fine."""


class SampleStrategy(Component):
    """Picks from the ledger's index which groups make the next step."""

    def __call__(self, index: Sequence[Entry], n: int) -> list[str]:
        """At most ``n`` ids out of ``index``; fewer means "wait for more"."""
        raise NotImplementedError


# --- train ------------------------------------------------------------------------------------------------------------

Need = str
"""*old_logp, ref_logp, sampler_logp, teacher_logp, teacher_logits, entropy, entropy_grad, value, greedy, expert, pairs,
state, step_reward* or ``vocab:<name>``."""


class Advantage(Component):
    """Turns scores into credit. numpy only."""

    claims: ClassVar[frozenset[str]] = frozenset()
    """*zero_on_constant_group, shift_invariant, scale_invariant, needs_group*: what the kit tests, both ways."""
    reads_reward: ClassVar[bool] = True
    """Credit comes from rewards: where False, a KL in the reward would have no effect, and is refused."""
    selects: ClassVar[bool] = False
    """It chooses what is learned (``Credit.keep_N``): it goes with a loss that reads no advantage."""

    def needs(self) -> frozenset[Need]:
        return frozenset()

    def vocab(self) -> Mapping[str, Callable[..., Mapping[str, Any]]]:
        """Vocabulary functions by name (``needs`` says ``vocab:<name>``), measured under the policy before credit: what they
        return is in ``batch.tokens``."""
        return {}

    def __call__(self, batch: AdvantageBatch) -> Credit:
        raise NotImplementedError


class Loss(Component):
    """Turns credit and log-probabilities into unreduced values; the kernel reduces."""

    scope: ClassVar[Literal["token", "sequence", "pair", "group", "batch"]] = "token"
    """The smallest set that the values depend on."""
    reduction: ClassVar[str] = "token_mean"
    """What ``algorithm.reduction: null`` means for this loss."""
    unit: ClassVar[Literal["token", "sequence", "pair"]] = "token"
    """Unit of its values."""
    claims: ClassVar[frozenset[str]] = frozenset()
    """*inert_at_zero_advantage, policy_gradient_at_ratio_1, reads_old_logp*: what the kit tests, both ways."""
    reads_advantage: ClassVar[bool] = True
    """It reads ``batch.advantage_N``: a run without an advantage is refused; where False, one with an advantage that only weighs."""
    imitates: ClassVar[bool] = False
    """It raises the probability of whatever it is given: without an advantage a run needs data that is worth it."""

    def needs(self) -> frozenset[Need]:
        return frozenset()

    def vocab(self) -> Mapping[str, Callable[..., Mapping[str, Any]]]:
        """Vocabulary functions by name (``needs`` says ``vocab:<name>``): ``f(logits_CV, aux) -> {name: array_C}``."""
        return {}

    def __call__(self, batch: LossBatch) -> LossOutput:
        raise NotImplementedError


class Correction(Component):
    """``(batch) -> (weight_N, keep_N)``, both detached; multiplies policy terms only."""

    needs_sampler: ClassVar[bool] = True
    scope: ClassVar[Literal["token", "sequence"]] = "token"
    """The smallest set that its weights depend on."""
    weighs: ClassVar[bool] = True
    """False: all its weights are 1, it only drops."""

    def __call__(self, batch: LossBatch) -> Any:
        raise NotImplementedError


class Backend(Component):
    """Config of the owner of trained weights; :meth:`open` gives the :class:`LiveBackend`."""

    provides: ClassVar[frozenset[Need]] = frozenset()
    """The needs it can meet (``old_logp, ref_logp, entropy, entropy_grad, value, vocab`` …)."""
    direct: ClassVar[bool] = True
    """False: the service differentiates log-probabilities only; the two-pass form is always used."""

    def refuse(self, config: RunConfig) -> str | None:
        """At check: why this backend cannot honour a shared node, with the fix; ``None`` if it can."""
        return None

    def has_teacher(self, config: RunConfig) -> bool:
        """At check: whether this run has a teacher among the backend's models."""
        return config.teacher.path is not None

    def open(self, run: RunContext) -> LiveBackend:
        raise NotImplementedError


class LiveBackend:
    """Weights of the policy and, where asked for, reference, critic, teacher."""

    tokenizer: Tokenizer

    def measure(
        self,
        batch: TrainBatch,
        model: str,
        outputs: frozenset[str],
        *,
        vocabulary: Mapping[str, Callable[..., Mapping[str, Any]]] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Arrays over the batch's action tokens, in batch order, without gradient, of *policy, reference, critic, teacher*:
        ``logp, entropy, value``, ``topk:K`` (``topk_ids`` and ``topk_logp``), ``vocab:<name>`` (what ``vocabulary[name]``
        returns) and ``hidden``, which only the backend reads: from ``batch.measured["teacher_hidden"]`` its head makes the
        ``teacher_logits_CV`` of vocabulary functions."""
        raise NotImplementedError

    def teacher_tokenizer(self) -> Tokenizer:
        """The teacher's own tokenizer and chat template (default: the policy's)."""
        return self.tokenizer

    def update(self, batch: TrainBatch, model: str, objective: Objective, *, lr_scale: float) -> UpdateResult:
        """One optimizer step on the sum of ``objective`` over the batch's micro-batches."""
        raise NotImplementedError

    def publish(self, version: int, *, copy: bool) -> Weights:
        """The policy's weights for engines. ``copy``: sampling may overlap training, so a shared module is not allowed."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Weights, optimizer and RNG state into ``folder`` (exists, empty)."""
        raise NotImplementedError

    def snapshot(self) -> Callable[[Path], None] | None:
        """What :meth:`save` would write now, as copies, and a function that writes them: it is called once, later, on another
        thread, while training goes on. ``None``: this backend has no room or no way for that, and the step waits for :meth:`save`.
        """
        return None

    def load(self, folder: Path) -> None:
        raise NotImplementedError

    def export(self, folder: Path) -> None:
        """The policy as a plain folder that others load (Hugging Face layout where that is meaningful)."""
        raise NotImplementedError

    def digest(self) -> str:
        """sha256 over the policy's weights, in order of name."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """For the plan: parameters, trained parameters, dtype, device."""
        return {}

    def close(self) -> None:
        """Twice is fine."""


class Engine(Component):
    """Config of the owner of sampling weights; :meth:`open` gives the :class:`LiveEngine`."""

    accepts: ClassVar[frozenset[str]] = frozenset({"tensors"})
    """Kinds of :class:`~trinity_core.types.Weights` it can load."""
    capabilities: ClassVar[frozenset[str]] = frozenset()
    """*score, waves, top_p, top_k, stop, deterministic*"""

    def refuse(self, config: RunConfig) -> str | None:
        """At check: why this engine cannot honour a shared node, with the fix; ``None`` if it can."""
        return None

    def open(self, run: RunContext) -> LiveEngine:
        raise NotImplementedError


class LiveEngine:
    """Tokens in, tokens and log-probabilities out. Sampling noise depends on ``request.seed`` and position only."""

    tokenizer: Tokenizer
    version: int
    """The version it samples from (-1 before the first load)."""

    async def generate(self, request: Request) -> Completion:
        raise NotImplementedError

    async def generate_wave(self, requests: Sequence[Request]) -> list[Completion]:
        """Several at once, answers in the same order (default: one by one, concurrently)."""
        import asyncio

        return list(await asyncio.gather(*(self.generate(request) for request in requests)))

    async def stream_wave(self, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, Completion], None]:
        """The wave, each answer as soon as it is there: (place among ``requests``, completion), so that scoring and storing go on
        beside what is still sampled (default: all of :meth:`generate_wave` at its end, or :class:`RunError` where their number is
        wrong)."""
        completions = await self.generate_wave(requests)
        if len(completions) != len(requests):
            raise RunError(f"the engine returned {len(completions)} completions for a wave of {len(requests)}")
        for place, completion in enumerate(completions):
            yield place, completion

    async def score(self, tokens_T: NDArray[np.int32], *, topk: int = 0) -> Scores:
        raise NotImplementedError(f"{type(self).__name__} cannot score given tokens")

    async def load(self, weights: Weights, *, in_flight: Literal["finish", "abort", "continue"] = "finish") -> Receipt:
        raise NotImplementedError

    async def abort(self, keys: Sequence[Key]) -> None:
        """Stop these generations, if they still run."""

    def close(self) -> None:
        """Twice is fine."""


# --- run --------------------------------------------------------------------------------------------------------------


class Runtime(Component):
    """Places explorer, buffer and trainer (provisional: only ``inprocess`` exists)."""


class Tracker(Component):
    """Watches a run; its methods read as a timeline. All values are plain data. One that raises stops the run."""

    def started(self, run: Mapping[str, Any]) -> None:
        """Once: id, dir, config (redacted), plan, manifest, resumed."""

    def progress(self, state: Mapping[str, Any]) -> None:
        """Often, from the first second: ``phase, step, steps, groups, tokens, tokens_per_s``."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """After each training step."""

    def evaluated(self, step: int, taskset: str, result: Mapping[str, Any]) -> None:
        """After each evaluation: ``accuracy, ci_low, ci_high, n`` …"""

    def checkpointed(self, step: int, path: str) -> None:
        """After each checkpoint."""

    def warned(self, message: str) -> None:
        """Something the user should see that does not stop the run."""

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Once, also after a failure (``summary["status"]``)."""


class Command(Component):
    """A subcommand of ``trinity``: ``(argv) -> exit code``."""

    def __call__(self, argv: Sequence[str]) -> int:
        raise NotImplementedError
