"""Six toy algorithms that live only in the conformance kit: each needs something of the trainer that no simple loss does.

They are proof that the kernel carries a pair loss, two populations with a denominator each, a loss whose values depend on
the whole batch, a critic, credit per call, and quantities of the whole vocabulary. Nobody ships them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trinity_core.algo import AdvantageBatch, Credit, LossOutput, Term
from trinity_core.protocols import Advantage, Loss

if TYPE_CHECKING:
    from trinity_core.algo import LossBatch


@dataclass(frozen=True)
class PairPreference(Loss):
    """``−log σ(β Δ)``, ``Δ = Σ(logp − ref)_chosen − Σ(logp − ref)_rejected``: one value per pair (as arXiv:2305.18290, eq. 7)."""

    reads_advantage: ClassVar[bool] = False
    scope: ClassVar[Any] = "pair"
    unit: ClassVar[Any] = "pair"

    beta: float = 0.1
    """Strength of the tie to the reference."""

    def needs(self) -> frozenset[str]:
        return frozenset({"pairs", "ref_logp"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        from torch.nn.functional import logsigmoid

        margin_B = batch.seq_sum(batch.logp_N - batch.ref_logp_N)
        delta_P = margin_B[batch.pairs[:, 0]] - margin_B[batch.pairs[:, 1]]
        return LossOutput.per_pair(-logsigmoid(self.beta * delta_P), won=delta_P > 0)


@dataclass(frozen=True)
class TwoPopulations(Loss):
    """``(1 − μ) · (−A r) over own tokens + μ · (−logp) over expert tokens``: a denominator each."""

    claims: ClassVar[frozenset[str]] = frozenset({"reads_old_logp"})

    mu: float = 0.3
    """Share of the expert's term."""

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp", "expert"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        own = Term("policy", -batch.advantage_N * batch.ratio_N, over="own", coef=1 - self.mu)
        expert = Term("imitate", -batch.logp_N, over="expert", coef=self.mu, policy=False)
        return LossOutput([own, expert])


@dataclass(frozen=True)
class BatchCentred(Loss):
    """``−A logp + (logp − mean over the batch)²`` on a random half of the tokens: no value stands alone."""

    scope: ClassVar[Any] = "batch"

    half: float = 0.5
    """Chance that a token counts, by ``batch.uniform_N``."""

    def __call__(self, batch: LossBatch) -> LossOutput:
        logp_N = batch.logp_N
        centred_N = logp_N - logp_N.sum() / max(len(logp_N), 1)
        values_N = -batch.advantage_N * logp_N + centred_N**2
        return LossOutput.per_token(values_N * (batch.uniform_N < self.half))


@dataclass(frozen=True)
class ActorCritic(Loss):
    """``−A r`` and ``½ (V − returns)²``: a term for the policy, one for the value."""

    claims: ClassVar[frozenset[str]] = frozenset({"policy_gradient_at_ratio_1", "reads_old_logp"})

    def needs(self) -> frozenset[str]:
        return frozenset({"old_logp", "value"})

    def __call__(self, batch: LossBatch) -> LossOutput:
        value = Term("critic", 0.5 * (batch.value_N - batch.returns_N) ** 2, coef=0.5, policy=False)
        return LossOutput([Term("policy", -batch.advantage_N * batch.ratio_N, over="all"), value])


@dataclass(frozen=True)
class TopKDistill(Loss):
    """``KL(teacher ‖ student)`` over the teacher's top k, the rest of the vocabulary as one bin."""

    reads_advantage: ClassVar[bool] = False
    claims: ClassVar[frozenset[str]] = frozenset()

    def needs(self) -> frozenset[str]:
        return frozenset({"teacher_logits", "vocab:topk"})

    def vocab(self) -> Mapping[str, Callable[..., Mapping[str, Any]]]:
        return {"topk": both_topk}

    def __call__(self, batch: LossBatch) -> LossOutput:
        teacher_NK = batch.extra["teacher_top_logp"]
        rest_N = (1 - teacher_NK.exp().sum(-1)).clamp(min=1e-12)
        values_N = (teacher_NK.exp() * (teacher_NK - batch.extra["student_logp"])).sum(-1)
        return LossOutput.per_token(values_N + rest_N * (rest_N.log() - batch.extra["student_rest"]))


def both_topk(logits_CV: Any, aux: Mapping[str, Any]) -> dict[str, Any]:
    """The teacher's three largest log-probabilities (C, K), the student's of the same ids (C, K), and the student's of all
    other tokens together (C)."""
    top = aux["teacher_logits_CV"].log_softmax(-1).topk(3, dim=-1)
    logp_CV = logits_CV.log_softmax(-1)
    others_CV = logp_CV.scatter(-1, top.indices, float("-inf"))
    return {
        "teacher_top_logp": top.values,
        "student_logp": logp_CV.gather(-1, top.indices),
        "student_rest": others_CV.logsumexp(-1),
    }


@dataclass(frozen=True)
class PerCall(Advantage):
    """Each call's step reward minus the mean over calls of its group taken in the same state: credit per call."""

    claims: ClassVar[frozenset[str]] = frozenset({"zero_on_constant_group", "shift_invariant", "needs_group"})

    def needs(self) -> frozenset[str]:
        return frozenset({"state", "step_reward"})

    def __call__(self, batch: AdvantageBatch) -> Credit:
        credit_K = np.zeros(len(batch.reward_K))
        reward_K = np.where(np.isfinite(batch.reward_K), batch.reward_K, batch.reward_A[batch.attempt_K])
        counts_K = batch.baseline_A[batch.attempt_K] & np.isfinite(reward_K)
        keys = list(zip(batch.group_A[batch.attempt_K].tolist(), batch.state_K.tolist()))
        for key in {key for key, counts in zip(keys, counts_K) if counts}:
            same_K = np.array([other == key for other in keys]) & counts_K
            centred = reward_K[same_K] - reward_K[same_K].mean()
            credit_K[same_K] = np.where(np.ptp(reward_K[same_K]) > 1e-9, centred, 0.0)
        return Credit(credit_K, per="call")


TOY_LOSSES: tuple[type[Loss], ...] = (PairPreference, TwoPopulations, BatchCentred, ActorCritic, TopKDistill)
