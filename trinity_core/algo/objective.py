"""The kernel's loss: terms, corrections, KL, entropy and value, reduced with weights counted on the host. Picklable.

``objective(micro, outputs)`` gives this micro-batch's *share*: all shares of an update, over all cuts and ranks, sum to the
loss. A backend multiplies by whatever its engine divides by and counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinity_core.algo import kl as estimators
from trinity_core.algo.accumulate import accumulate
from trinity_core.algo.batch import LossOutput, Term, TrainBatch
from trinity_core.algo.loss_batch import LossBatch
from trinity_core.algo.report import report
from trinity_core.algo.stats import Stats
from trinity_core.config.schema import Kl
from trinity_core.errors import ConfigError, DataError
from trinity_core.protocols import Correction, Loss

__all__ = ["Objective", "Stats", "accumulate"]

SCOPES = ("token", "sequence", "pair", "group", "batch")
"""From narrow to wide."""
UNITS = {"token": "token_weight", "sequence": "sequence_weight", "pair": "pair_weight"}


@dataclass(frozen=True)
class NoPolicy(Loss):
    """No term at all: what a critic's objective starts from."""

    def __call__(self, batch: LossBatch) -> LossOutput:
        return LossOutput([])


@dataclass(frozen=True)
class Objective:
    """Everything that makes the loss of one update except its numbers, which travel in :class:`TrainBatch`."""

    loss: Loss
    corrections: tuple[Correction, ...] = ()
    kl: Kl | None = None
    """KL to the reference as a term (``coef["kl"]``); ``None``: none."""
    clip_value: float | None = None
    """Width of the value clip; the value term is added where ``outputs`` has *value* and the batch has returns."""
    old: str = "measured"
    """Where old log-probabilities come from: *forward* (this very forward: ratio exactly 1), *measured*, *sampler*."""
    outputs: frozenset[str] = frozenset({"logp"})
    """What the forward must give: *logp, entropy, value, vocab:<name>*, with gradient; *entropy_value*, without."""
    scope: str = "token"

    def __post_init__(self) -> None:
        if self.old not in ("forward", "measured", "sampler"):
            raise ConfigError(f"algorithm.old_logp: {self.old!r} is unknown. Choose forward, measured or sampler")
        if self.kl is not None and self.kl.estimator == "k1":
            raise ConfigError(
                "algorithm.kl: k1 as a term of the loss has no gradient on average. Use estimator=k2 or k3, or where=reward"
            )
        if self.corrections and self.loss.unit != "token":
            raise ConfigError(
                f"corrections weigh tokens, but {type(self.loss).__name__} gives one value per {self.loss.unit}. Set corrections to none (and sync.uncorrected=true for stale data)"
            )

    @classmethod
    def of(
        cls,
        loss: Loss,
        corrections: Sequence[Correction] = (),
        *,
        kl: Kl | None = None,
        entropy: bool = False,
        watch: bool = False,
        clip_value: float | None = None,
        old: str = "measured",
    ) -> Objective:
        """The objective of these parts: outputs and scope follow from them. ``kl`` counts where ``where="loss"``;
        ``entropy``: a bonus with ``coef["entropy"]`` is added; ``watch``: entropy is reported even where nothing needs it."""
        needs = loss.needs()
        outputs = {"logp"} | {need for need in needs if need.startswith("vocab:")}
        if entropy or needs & {"entropy", "entropy_grad"}:
            outputs.add("entropy")
        elif watch:
            outputs.add("entropy_value")
        if "value" in needs or clip_value is not None:
            outputs.add("value")
        term = kl if kl is not None and kl.where == "loss" else None
        scope = max([loss.scope, *(correction.scope for correction in corrections)], key=SCOPES.index)
        return cls(loss, tuple(corrections), term, clip_value, old, frozenset(outputs), scope)

    @classmethod
    def critic(cls, clip_value: float) -> Objective:
        """The objective of a value model with weights of its own: the value term alone."""
        return cls(NoPolicy(), clip_value=clip_value, outputs=frozenset({"value"}))

    @property
    def needs(self) -> frozenset[str]:
        """Arrays that must be measured or stored for this objective."""
        needs = set(self.loss.needs())
        if self.kl is not None:
            needs |= {"ref_logp", "old_logp"} if self.kl.estimator == "corrected_k3" else {"ref_logp"}
        if self.corrections:
            needs |= {"old_logp", "sampler_logp"}
        return frozenset(needs)

    def vocab(self) -> Mapping[str, Callable[..., Mapping[str, Any]]]:
        """The vocabulary functions to run on each chunk of the head, by name."""
        functions = self.loss.vocab()
        wanted = {need.removeprefix("vocab:") for need in self.outputs if need.startswith("vocab:")}
        if wanted - set(functions):
            raise DataError(
                f"{type(self.loss).__name__} needs vocab:{', '.join(sorted(wanted - set(functions)))} but its vocab() has no such function"
            )
        return {name: functions[name] for name in sorted(wanted)}

    def live_rows(self, batch: TrainBatch) -> NDArray[np.int64]:
        """Sequences of ``batch`` that any term can reach; the rest adds neither value nor gradient and need not be computed.

        Left out are sequences that weigh 0 in every sum, and those without credit where the loss says of itself that no credit
        means no gradient (``inert_at_zero_advantage``), no other term is added, and its scope does not reach beyond units that
        are all without credit.
        """
        weighs_B = np.zeros(len(batch), dtype=np.bool_)
        for population, weight_N in batch.token_weight.items():
            weighs_B[batch.row_N[weight_N != 0]] = True
            weighs_B |= batch.sequence_weight[population] != 0
            weighs_B[batch.pairs_P2[batch.pair_weight[population] != 0]] = True
        inert = "inert_at_zero_advantage" in self.loss.claims and batch.advantage_N is not None
        added = (
            self.kl is not None and batch.coef.get("kl", 0.0) != 0,
            "entropy" in self.outputs and batch.coef.get("entropy", 0.0) != 0,
        )
        if inert and not any(added) and self.clip_value is None:
            credited_B = np.zeros(len(batch), dtype=np.bool_)
            credited_B[batch.row_N[batch.advantage_N != 0]] = True
            weighs_B &= credited_B
        unit_B = batch.unit_B(self.scope)
        return np.flatnonzero(np.isin(unit_B, unit_B[weighs_B]))

    def __call__(
        self, micro: TrainBatch, outputs: Mapping[str, Tensor], *, detach: Callable[[Tensor], Tensor] = Tensor.detach
    ) -> tuple[Tensor, Stats]:
        """This micro-batch's share of the loss, and its statistics.

        ``outputs`` are the forward's arrays over the action tokens of ``micro``, in order: ``logp`` and whatever else
        :attr:`outputs` names. ``detach`` is the stop-gradient (the conformance kit records it).
        """
        for name, array in outputs.items():
            if len(array) != micro.num_actions:
                raise DataError(
                    f"the forward gave {len(array)} entries of {name} for {micro.num_actions} action tokens"
                )
        if not micro.token_weight:
            raise DataError(
                "this batch has no weights. Call set_weights(update, reduction, …) once per update, before cutting it"
            )
        batch = LossBatch(micro, outputs, self.loss.needs(), old=self.old, detach=detach, who=type(self.loss).__name__)
        output = self.loss(batch)
        if not isinstance(output, LossOutput):
            raise DataError(
                f"loss {type(self.loss).__name__}: returned {type(output).__name__}, not a LossOutput. End it with "
                "LossOutput.per_token(values_N)"
            )
        # the kernel's own parts may read what the loss did not ask for
        whole = LossBatch(
            micro, outputs, self.needs | {"value", "returns", "entropy"}, old=self.old, detach=detach, who="the kernel"
        )
        if "old" in batch._cache:
            whole._cache["old"] = batch._cache["old"]
        weight_N, corrections = self._corrected(whole)
        shares: dict[str, Tensor] = {}
        for term in [*output.terms, *self._kernel_terms(whole, output)]:
            share = self._reduce(term, micro, weight_N)
            shares[term.name] = shares[term.name] + share if term.name in shares else share
        # an update without terms that reach the model is still a sum over its log-probabilities
        total = torch.stack(list(shares.values())).sum() if shares else next(iter(outputs.values())).sum() * 0.0
        return total, report(micro, whole, output, shares, corrections)

    def _kernel_terms(self, batch: LossBatch, output: LossOutput) -> list[Term]:
        coef, terms = batch.coef, []
        if self.kl is not None:
            ratio_N = batch.ratio_N if self.kl.estimator == "corrected_k3" else None
            values_N = estimators.estimate(self.kl.estimator, batch.logp_N, batch.ref_logp_N, ratio=ratio_N)
            terms.append(Term("kl", values_N, over="own", coef=coef.get("kl", 0.0), policy=False))
        if "entropy" in self.outputs and "entropy" in coef:
            terms.append(Term("entropy", -batch.entropy_N, over="own", coef=coef["entropy"], policy=False))
        if self.clip_value is not None:
            value_N, old_N, returns_N = batch.value_N, batch.old_value_N, batch.returns_N
            near_N = old_N + (value_N - old_N).clamp(-self.clip_value, self.clip_value)
            values_N = 0.5 * torch.maximum((value_N - returns_N) ** 2, (near_N - returns_N) ** 2)
            terms.append(Term("value", values_N, over="own", coef=coef.get("value", 1.0), policy=False))
        return terms

    def _corrected(self, batch: LossBatch) -> tuple[Tensor | None, dict[str, tuple[Tensor, Tensor, Tensor]]]:
        """The product of all corrections per token, detached, and each one's (weight, keep, truncated)."""
        if not self.corrections:
            return None, {}
        unknown_N = batch.sampler_logp_N.isnan()  # nobody sampled these: there is nothing to correct
        product_N, each = torch.ones_like(batch.sampler_logp_N), {}
        for correction in self.corrections:
            weight_N, keep_N = correction(batch)
            weight_N, keep_N = batch.detach(weight_N), batch.detach(keep_N)
            weight_N = torch.where(unknown_N, torch.ones_like(weight_N), weight_N)
            keep_N = keep_N.bool() | unknown_N
            product_N = product_N * torch.where(keep_N, weight_N, torch.zeros_like(weight_N))
            name = type(correction).__name__
            while name in each:
                name += "_"
            known_N, cut_N = ~unknown_N, keep_N & self._truncated(batch, correction, weight_N)
            each[name] = (weight_N[known_N], keep_N[known_N], cut_N[known_N])
        return product_N, each

    @staticmethod
    def _truncated(batch: LossBatch, correction: Correction, weight_N: Tensor) -> Tensor:
        """Where the weight is less than the ratio, of the token or of its whole sequence, that it stands for."""
        if not correction.weighs:
            return torch.zeros_like(weight_N, dtype=torch.bool)
        full_N = (batch.detach(batch.old_logp_N) - batch.sampler_logp_N).nan_to_num(nan=0.0)
        if correction.scope == "sequence":
            full_N = batch.spread(batch.seq_sum(full_N))
        return weight_N < full_N.clamp(-20.0, 20.0).exp() * (1 - 1e-6)

    def _reduce(self, term: Term, micro: TrainBatch, correction_N: Tensor | None) -> Tensor:
        """``coef · Σ weight · value``; where the weight is 0 the value, whatever it is, has no part in it."""
        who = f"{type(self.loss).__name__}, term {term.name!r}"
        if term.unit not in UNITS:
            raise DataError(f"{who}: unit {term.unit!r} is unknown. Choose one of {', '.join(UNITS)}")
        weights: Mapping[str, np.ndarray[Any, Any]] = getattr(micro, UNITS[term.unit])
        if term.over not in weights:
            raise DataError(f"{who}: population {term.over!r} is unknown. Choose one of {', '.join(weights)}")
        if term.values.shape != weights[term.over].shape:
            raise DataError(
                f"{who}: values of shape {tuple(term.values.shape)}, one per {term.unit} is {weights[term.over].shape}. Return them unreduced"
            )
        values, weight = (
            term.values,
            torch.as_tensor(weights[term.over], dtype=term.values.dtype, device=term.values.device),
        )
        if correction_N is not None and term.policy:
            if term.unit != "token":
                raise DataError(f"{who}: corrections weigh tokens and cannot multiply one value per {term.unit}")
            weight = weight * correction_N.to(weight.dtype)
        return term.coef * (torch.where(weight != 0, values, torch.zeros_like(values)) * weight).sum()
