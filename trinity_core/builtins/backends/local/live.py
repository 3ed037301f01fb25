"""The live side of ``local``: measure, update, publish."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinity_core.algo.batch import TrainBatch, ranges
from trinity_core.algo.cut import cut, plan
from trinity_core.algo.trie import Trie
from trinity_core.allocator import keep_freed_memory
from trinity_core.builtins.backends.local import state
from trinity_core.builtins.backends.local.learner import Learner
from trinity_core.builtins.backends.local.teacher import LocalTeacher
from trinity_core.builtins.models import adapter
from trinity_core.builtins.models.causal import CausalLM
from trinity_core.builtins.models.head import Vocabulary, head_outputs
from trinity_core.builtins.models.packing import pack, plain_rows
from trinity_core.builtins.models.probe import why_not_shared
from trinity_core.builtins.models.quantized import size
from trinity_core.builtins.models.resolve import resolve_model
from trinity_core.builtins.models.token_head import fits, positions, token_outputs
from trinity_core.builtins.models.value import ValueModel
from trinity_core.config.schema import Critic, Model, Optim, Teacher
from trinity_core.errors import DataError, RunError
from trinity_core.protocols import LiveBackend, RunContext, Tokenizer
from trinity_core.rollout.tokenizer import HFTokenizer
from trinity_core.types import UpdateResult, Weights

if TYPE_CHECKING:
    from trinity_core.algo.objective import Objective
    from trinity_core.builtins.backends.local import Local

log = logging.getLogger(__name__)


class LiveLocal(LiveBackend):
    """A policy and, where asked for, a critic, each with its optimizer; reference and teacher are loaded when they are first
    measured."""

    def __init__(
        self,
        config: Local,
        folder: Path,
        model: Model,
        optim: Optim,
        *,
        critic: Critic | None = None,
        teacher: Teacher | None = None,
        threads: int | None = None,
        seed: int = 0,
    ) -> None:
        if config.keep_memory:
            keep_freed_memory()
        if threads is not None:
            torch.set_num_threads(threads)
        self.config, self.model_config = config, model
        self.tokenizer = HFTokenizer(folder, model.chat_template)

        def load(kind: type[CausalLM]) -> CausalLM:
            with torch.random.fork_rng(devices=[]):  # adapters start from the run's seed, whatever ran before
                torch.manual_seed(seed)
                loaded = kind.load(folder, model, device=config.device, lora=model.lora)
            if config.gradient_checkpointing:
                recompute(loaded)
            return loaded

        self.policy = load(CausalLM)
        self.learners = {"policy": Learner(self.policy.trained(), optim, optim.lr)}
        self.critic: CausalLM | None = None
        if critic is not None:
            self.critic = load(ValueModel)
            self.learners["critic"] = Learner(self.critic.trained(), optim, critic.lr)
        # A checkpoint holds the generator's state: it must be the run's, not the process's.
        torch.manual_seed(seed)
        self._reference: CausalLM | None = None
        self._base: int | None = None
        self.adapters_alone = True
        """Whether engines get the adapters alone and not a merged model."""
        self.teacher: LocalTeacher | None = None
        if teacher is not None and teacher.path is not None:
            self.teacher = LocalTeacher(teacher, self.tokenizer, config)
        self.unshared = why_not_shared(self.policy) if config.share_prefix else "share_prefix is false"
        if config.share_prefix and self.unshared:
            log.warning("backend local computes every prompt once per attempt, not once per group: %s", self.unshared)
        for lm in filter(None, (self.policy, self.critic)):
            lm.shares_prefixes = not self.unshared

    @classmethod
    def open(cls, config: Local, run: RunContext) -> LiveLocal:
        nodes = run.config
        live = cls(
            config,
            resolve_model(nodes.model.path),
            nodes.model,
            nodes.optim,
            critic=nodes.critic,
            teacher=nodes.teacher,
            threads=nodes.threads,
            seed=run.seed,
        )
        engine = nodes.part("engine")
        live.adapters_alone = engine is None or "adapter" in type(engine).accepts
        return live

    # measure and update

    def measure(
        self, batch: TrainBatch, model: str, outputs: frozenset[str], *, vocabulary: Vocabulary | None = None
    ) -> dict[str, NDArray[Any]]:
        """Of *policy, reference* and *teacher*: ``logp, entropy, topk:K, hidden, vocab:<name>``; of the *critic*: ``value``.
        float64, but hidden states stay as they are and ids are integers."""
        found: dict[str, NDArray[Any]] = {}
        with torch.no_grad(), self._model(model) as lm:
            trie = Trie(batch, share=lm.shares_prefixes)
            if model == "teacher" and "hidden" in outputs and self.teacher is not None:
                self.teacher.covers(self.policy)
            for rows in cut(batch, scope="sequence", max_tokens=self.config.micro_tokens, trie=trie):
                start_B = np.searchsorted(batch.row_N, rows, "left")
                take_N = ranges(start_B, np.searchsorted(batch.row_N, rows, "right") - start_B)
                for name, values in self._forward(lm, batch.select(rows), outputs, vocabulary or {}).items():
                    if name == "hidden":
                        values = values if values.dtype == torch.float64 else values.float()
                    elif values.is_floating_point():
                        values = values.double()
                    array = values.cpu().numpy()
                    if name not in found:
                        found[name] = np.zeros((batch.num_actions, *array.shape[1:]), array.dtype)
                    found[name][take_N] = array
        if "logp" not in outputs:
            found.pop("logp", None)
        return found or {name: np.zeros(0) for name in outputs}

    def teacher_tokenizer(self) -> Tokenizer:
        return self.tokenizer if self.teacher is None else self.teacher.tokenizer

    def update(self, batch: TrainBatch, model: str, objective: Objective, *, lr_scale: float) -> UpdateResult:
        if model not in self.learners:
            raise RunError(f"backend local trains {' and '.join(self.learners)}, not {model!r}")
        with self._model(model) as lm:
            share = lm.shares_prefixes
        vocabulary, outputs = objective.vocab(), frozenset(objective.outputs)

        def forward(micro: TrainBatch) -> dict[str, Tensor]:
            with self._model(model) as lm:
                return self._forward(lm, micro, outputs, vocabulary)

        rows = objective.live_rows(batch) if self.config.skip_inert else np.arange(len(batch))
        cuts, two_pass = plan(batch, scope=objective.scope, max_tokens=self.config.micro_tokens, rows=rows, share=share)
        result = self.learners[model].update(objective, batch, forward, cuts, two_pass=two_pass, lr_scale=lr_scale)
        result.stats |= told_by_host(batch, rows)
        return result

    def _forward(
        self, lm: CausalLM, batch: TrainBatch, outputs: frozenset[str], vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        longest, context = (
            int(batch.lengths_B().max(initial=0)),
            getattr(lm.module.config, "max_position_embeddings", None),
        )
        if context is not None and longest > context:
            raise DataError(
                f"a sequence of {longest} tokens, and {lm.folder} reads at most {context}. Leave long data out "
                "(tasksets.<slot>.max_tokens), or lower sampling.max_attempt_tokens"
            )

        def put(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(lm.device)

        extras: Mapping[str, Tensor] = {}
        taught: dict[str, Any] = {}
        if vocabulary:
            extras = {name: put(array) for name, (array, axis) in batch.extras.items() if axis == "action"}
            if self.teacher is not None and "teacher_hidden" in batch.measured:
                taught = {"teacher": self.teacher.model(), "teacher_NH": put(batch.measured["teacher_hidden"])}
        token_N = put(batch.tokens_T[batch.action_N].astype(np.int64))
        with lm.recipe():
            if lm.shares_prefixes:
                packed = pack(batch)
                hidden_TH = lm.hidden_of_blocks(put(packed.ids_T), put(packed.position_T), packed.blocks)
                cell_N = packed.cell_N
            else:
                ids_BL, position_BL, cell_N = plain_rows(batch)
                hidden_TH = lm.hidden(put(ids_BL), put(position_BL), None).flatten(0, 1)
            if fits(lm, outputs):
                first_U, row_N = positions(cell_N, batch.temperature_N)
                temperature_U = put(batch.temperature_N[first_U].astype(np.float64))
                hidden_UH = hidden_TH[put(cell_N[first_U])]
                return token_outputs(lm, hidden_UH, temperature_U, token_N, put(row_N), outputs)
            hidden_NH = hidden_TH[put(cell_N)]
            temperature_N = put(batch.temperature_N.astype(np.float64))
            if isinstance(lm, ValueModel):
                if outputs != {"value"}:
                    raise RunError(
                        f"backend local: the critic gives value, not {', '.join(sorted(outputs - {'value'}))}"
                    )
                return {"value": lm.value(hidden_NH)}
            if outputs == {"hidden"}:
                return {"hidden": hidden_NH}
            found = head_outputs(
                lm, hidden_NH, token_N, temperature_N, outputs - {"hidden"}, vocabulary, extras, **taught
            )
            return found | {"hidden": hidden_NH} if "hidden" in outputs else found

    @contextlib.contextmanager
    def _model(self, name: str) -> Iterator[CausalLM]:
        """The weights of model ``name``."""
        if name == "policy":
            yield self.policy
        elif name == "critic":
            if self.critic is None:
                raise RunError("backend local: this run has no critic. Set critic=value_head")
            yield self.critic
        elif name == "teacher":
            if self.teacher is None:
                raise RunError("backend local: this run has no teacher. Set teacher.path to a model")
            yield self.teacher.model()
        elif name != "reference":
            raise RunError(f"backend local has the models policy, reference, critic and teacher, not {name!r}")
        elif self.policy.peft is not None:
            with self.policy.base():
                yield self.policy
        else:
            if self._reference is None:
                self._reference = CausalLM.frozen(self.policy.folder, self.model_config, device=self.config.device)
                self._reference.shares_prefixes = self.policy.shares_prefixes
            yield self._reference

    # delivery and state

    def publish(self, version: int, *, copy: bool) -> Weights:
        if not copy:
            return Weights(version, "module", self.policy)
        if self.policy.peft is None or not self.adapters_alone:
            return Weights(version, "tensors", self.policy.sampling_tensors())
        if self._base is None:
            self._base = adapter.base_digest(self.policy.folder)
        sent = {name: tensor.clone() for name, tensor in adapter.packed(self.policy, self._base).items()}
        return Weights(version, "adapter", sent)

    def save(self, folder: Path) -> None:
        state.save(self, Path(folder))

    def snapshot(self) -> Callable[[Path], None]:
        return state.snapshot(self)

    def load(self, folder: Path) -> None:
        state.load(self, Path(folder))

    def export(self, folder: Path) -> None:
        state.export(self, Path(folder))

    @torch.no_grad()
    def digest(self) -> str:
        hasher = hashlib.sha256()
        for name, parameter in sorted(self.policy.module.named_parameters()):
            hasher.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}\n".encode())
            hasher.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return hasher.hexdigest()

    def describe(self) -> dict[str, Any]:
        parameters, trained = list(self.policy.module.parameters()), self.learners["policy"].trained
        master = str(parameters[0].dtype).removeprefix("torch.")
        compute = str(self.policy.compute).removeprefix("torch.")
        weights = f"nf4 base, {master} adapters" if self.policy.quantized else f"{master} weights"
        told = {
            "model": str(self.policy.folder),
            "parameters": sum(size(p) for p in parameters),
            "trained": sum(p.numel() for p in trained.values()),
            "trained_names": hashlib.sha256("\n".join(sorted(trained)).encode()).hexdigest()[:12],
            "dtype": f"{weights}, {compute} products" if compute != master or self.policy.quantized else master,
            "device": str(self.policy.device),
            "shared_prefixes": "computed once" if not self.unshared else f"off: {self.unshared}",
        }
        if "critic" in self.learners:
            count = sum(p.numel() for p in self.learners["critic"].trained.values())
            told["critic"] = f"value head on weights of its own, {count:,} trained"
        if self.teacher is not None:
            told["teacher"] = str(self.teacher.folder)
        return told

    def close(self) -> None:
        self._reference = None
        if self.teacher is not None:
            self.teacher.close()
        for learner in self.learners.values():
            learner.optimizer.zero_grad(set_to_none=True)


def told_by_host(batch: TrainBatch, rows: NDArray[np.int64]) -> dict[str, float]:
    """Statistics of the whole update that need no forward, so that they are the same however many sequences were skipped."""
    counted_N = batch.token_weight["all"] != 0
    total, live = int(counted_N.sum()), int((counted_N & np.isin(batch.row_N, rows)).sum())
    told = {"tokens": float(total), "tokens/skipped": float(total - live)}
    if batch.num_actions:
        told["kept"] = total / batch.num_actions
    if batch.advantage_N is not None and total:
        told["advantage"] = float(batch.advantage_N[counted_N].mean())
    return told


def recompute(lm: CausalLM) -> None:
    """Switch on gradient checkpointing."""
    lm.module.train()  # the switch acts in training mode only; dropout is 0 in every mode
    enable = getattr(lm.module, "activation_checkpointing_enable", None) or lm.module.gradient_checkpointing_enable
    enable({"use_reentrant": False})
