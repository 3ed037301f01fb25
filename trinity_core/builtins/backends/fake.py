"""A backend whose model is a table: exact, in float64, and done in milliseconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.cut import plan
from trinity_core.algo.digest import digest_tensors
from trinity_core.builtins.fake.leaves import Adam, Leaves
from trinity_core.builtins.fake.table import (
    Table,
    initial_table,
    refuse_model,
    starting_table,
    write_folder,
)
from trinity_core.builtins.fake.tokenizer import CharTokenizer
from trinity_core.config.schema import Critic, Optim, RunConfig
from trinity_core.errors import CheckpointError, ConfigError
from trinity_core.protocols import Backend, LiveBackend, RunContext
from trinity_core.types import UpdateResult, Weights

if TYPE_CHECKING:
    import torch

    from trinity_core.algo.objective import Objective

STATE = "state.safetensors"


@dataclass(frozen=True)
class Fake(Backend):
    """Trains a table policy (:mod:`trinity_core.builtins.fake`) with AdamW; the critic is one more column.

    A table knows each prefix by itself and generalises to none: give it a finite taskset and a learning rate near 0.3.
    """

    states: int = 4096
    """Rows of the table; prefixes that fall on one row share its logits."""
    alphabet: str = "0123456789"
    """Characters the fresh policy prefers."""
    noise: float = 0.01
    """Standard deviation of the fresh policy's logits."""
    micro_tokens: int = 4096
    """Tokens of one micro-batch."""
    two_pass: bool = False
    """Always differentiate in two passes, as a service would that gives log-probabilities only."""
    teacher_seed: int | None = None
    """Seed of a second fresh table that serves as the teacher; null: there is none."""

    beside: ClassVar[tuple[str, ...]] = ("model=fake", "engine=fake")
    """What a run that selects it needs beside it."""
    provides: ClassVar[frozenset[str]] = frozenset(
        {
            "old_logp",
            "ref_logp",
            "sampler_logp",
            "teacher_logp",
            "teacher_logits",
            "entropy",
            "entropy_grad",
            "value",
            "vocab",
        }
    )

    def refuse(self, config: RunConfig) -> str | None:
        if config.teacher.path is not None and self.teacher_seed is not None:
            return "teacher.path and backend.teacher_seed name two teachers. Drop one of them"
        return refuse_model(config)

    def has_teacher(self, config: RunConfig) -> bool:
        return config.teacher.path is not None or self.teacher_seed is not None

    def open(self, run: RunContext) -> LiveFake:
        config = run.config
        logits_SV = starting_table(
            config.model.path, states=self.states, alphabet=self.alphabet, noise=self.noise, seed=run.seed
        )
        live = LiveFake(self, logits_SV, config.optim, config.critic)
        if config.teacher.path is not None:
            live.frozen["teacher"] = starting_table(
                config.teacher.path, states=self.states, alphabet=self.alphabet, noise=self.noise, seed=run.seed
            )
        return live


class LiveFake(LiveBackend):
    """The tables of policy, reference and teacher, the critic's column, and the optimizer of what is trained."""

    def __init__(self, config: Fake, logits_SV: NDArray[np.float64], optim: Optim, critic: Critic | None) -> None:
        self.config = config
        self.tokenizer = CharTokenizer()
        self.table = Table(logits_SV)
        self.value_S = np.zeros(len(logits_SV))
        self.frozen = {"reference": logits_SV.copy()}
        if config.teacher_seed is not None:
            self.frozen["teacher"] = initial_table(len(logits_SV), config.alphabet, config.noise, config.teacher_seed)
        self.trained = {
            "policy": Adam(logits_SV, optim, optim.lr),
            "critic": Adam(self.value_S, optim, critic.lr if critic else optim.lr),
        }

    # measure and update

    def measure(
        self,
        batch: TrainBatch,
        model: str,
        outputs: frozenset[str],
        *,
        vocabulary: Mapping[str, Any] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Log-probabilities are at each token's own temperature; ``hidden`` is the number of the table's row."""
        import torch

        logits_SV = self._logits(model)
        with torch.no_grad():
            leaves = Leaves(batch, logits_SV, self.value_S)
            found = leaves.outputs(batch, outputs - {"hidden"}, vocabulary or {})
        arrays = {name: value.numpy() for name, value in found.items()}
        if "hidden" in outputs:
            arrays["hidden"] = leaves.state_N(batch)
        return arrays

    def update(self, batch: TrainBatch, model: str, objective: Objective, *, lr_scale: float) -> UpdateResult:
        from trinity_core.algo.objective import accumulate

        if model not in self.trained:
            raise ConfigError(f"backend fake trains {' and '.join(self.trained)}, not {model!r}")
        leaves = Leaves(batch, self.table.logits_SV, self.value_S, gradient=True, teacher_SV=self.frozen.get("teacher"))
        vocabulary = objective.vocab()
        outputs = frozenset(objective.outputs)

        def forward(micro: TrainBatch) -> dict[str, torch.Tensor]:
            return leaves.outputs(micro, outputs, vocabulary)

        cuts, two_pass = plan(
            batch, scope=objective.scope, max_tokens=self.config.micro_tokens, direct=not self.config.two_pass
        )
        loss, stats = accumulate(objective, batch, cuts, forward, two_pass=two_pass)
        gradients = leaves.gradients()
        norms = {name: float(np.sqrt((gradient**2).sum())) for name, gradient in gradients.items()}
        norm, lr = norms.get(model, 0.0), self.trained[model].lr * lr_scale
        if not np.isfinite([loss, *norms.values()]).all():
            return UpdateResult(
                loss, norm, lr, stats.summary(), skipped=f"not finite: loss {loss}, gradient norms {norms}"
            )
        moved = {
            name: self.trained[name].step(leaves.state_U, gradient, norms[name], lr_scale)
            for name, gradient in gradients.items()
        }
        return UpdateResult(loss, norm, lr, stats.summary(), moved=moved.get(model, 0.0))

    def _logits(self, model: str) -> NDArray[np.float64]:
        if model in self.trained:
            return self.table.logits_SV
        if model not in self.frozen:
            raise ConfigError(
                f"backend fake has no model {model!r}, only {', '.join([*self.trained, *self.frozen])}. Set backend.teacher_seed for a teacher"
            )
        return self.frozen[model]

    # delivery

    def publish(self, version: int, *, copy: bool) -> Weights:
        if not copy:
            return Weights(version, "module", self.table)
        tensors = {"logits": self.table.logits_SV.copy()}
        return Weights(version, "tensors", tensors, digest_tensors(tensors.items()))

    def export(self, folder: Path) -> None:
        """``config.json`` and ``model.safetensors``: what ``model.path`` and the engine ``fake`` read."""
        write_folder(folder, self.table.logits_SV)

    def digest(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.table.logits_SV).tobytes()).hexdigest()

    # state

    def save(self, folder: Path) -> None:
        self.snapshot()(folder)

    def snapshot(self) -> Callable[[Path], None]:
        arrays = {
            f"{name}.{part}": array.copy()
            for name, adam in self.trained.items()
            for part, array in adam.arrays().items()
        }
        updates = {name: adam.updates for name, adam in self.trained.items()}

        def write(folder: Path) -> None:
            from safetensors.numpy import save_file

            save_file(arrays, folder / STATE)
            (folder / "state.json").write_text(json.dumps(updates))

        return write

    def load(self, folder: Path) -> None:
        from safetensors.numpy import load_file

        try:
            arrays = load_file(folder / STATE)
            updates = json.loads((folder / "state.json").read_text())
            found = {
                (name, part): (array, arrays[f"{name}.{part}"])
                for name, adam in self.trained.items()
                for part, array in adam.arrays().items()
            }
            counts = {name: int(updates[name]) for name in self.trained}
        except Exception as error:  # the reader's own error classes are not public
            raise CheckpointError(
                f"{folder}: the table could not be read ({error}). Resume from another checkpoint"
            ) from error
        for (name, part), (mine, saved) in found.items():
            if mine.shape != saved.shape or saved.dtype != mine.dtype:
                raise CheckpointError(
                    f"{folder}: {name}.{part} is {saved.dtype}{list(saved.shape)}, this run has {mine.dtype}{list(mine.shape)}. Use the backend.states it was saved with"
                )
        for (_, _), (mine, saved) in found.items():
            mine[...] = saved
        for name, adam in self.trained.items():
            adam.updates = counts[name]

    def describe(self) -> dict[str, Any]:
        size = self.table.logits_SV.size
        return {"parameters": size, "trained": size, "dtype": "float64", "device": "cpu"}
