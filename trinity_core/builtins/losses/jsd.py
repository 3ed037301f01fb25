"""Distillation of a teacher's whole distribution."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from trinity_core.algo import LossBatch, LossOutput, Term
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss

FLOOR = -1e4
"""Log-probabilities below are this: a token that one side excludes (logit −∞) costs much and never gives NaN."""


@dataclass(frozen=True)
class JSD(Loss):
    """``β KL(p ‖ m) + (1 − β) KL(q ‖ m)`` with ``m = β p + (1 − β) q``, p the teacher, q the student, per token (arXiv:2306.13649, eq. 1).

    Over the whole vocabulary, or over the teacher's ``top_k`` tokens with all others as one bin (never more than the whole
    divergence). The formula is 0 at both ends; its gradient there, over β or 1 − β, is that of a KL, which is what the ends
    give: ``beta=0`` is KL(p ‖ q), which covers the teacher; ``beta=1`` is KL(q ‖ p), which seeks its mode. Exact, not sampled:
    reads no advantage, and corrections do not multiply it.
    """

    reads_advantage: ClassVar[bool] = False
    beside: ClassVar[tuple[str, ...]] = (
        "advantage=null",
        "teacher.path=teacher",
    )

    beta: float = 0.5
    """Share of the teacher in the mixture; 0: KL(teacher ‖ student), 1: KL(student ‖ teacher)."""
    top_k: int | None = None
    """The teacher's likeliest tokens that stand alone; null: the whole vocabulary."""

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ConfigError(f"loss.beta: from 0 to 1, got {self.beta}")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"loss.top_k: at least 1 (or null: the whole vocabulary), got {self.top_k}")

    def needs(self) -> frozenset[str]:
        return frozenset({"teacher_logits", "vocab:jsd"})

    def vocab(self) -> Mapping[str, Callable[..., Mapping[str, Any]]]:
        return {"jsd": functools.partial(divergence, beta=self.beta, top_k=self.top_k)}

    def __call__(self, batch: LossBatch) -> LossOutput:
        return LossOutput([Term("distill", batch.extra["jsd"], over="all", policy=False)])


def divergence(logits_CV: Tensor, aux: Mapping[str, Tensor], *, beta: float, top_k: int | None) -> dict[str, Tensor]:
    """The divergence (C) of the student's ``logits_CV`` from ``aux["teacher_logits_CV"]``; gradient to the student alone."""
    with torch.no_grad():
        p_CV = aux["teacher_logits_CV"].to(logits_CV.dtype).log_softmax(-1)
        unknown_C = p_CV.isnan().any(-1)
        p_CV = torch.where(unknown_C[:, None], torch.zeros_like(p_CV), p_CV)
    value_C = _divergence(p_CV, logits_CV.log_softmax(-1), beta, top_k)
    # a teacher's NaN is NaN here, but at a token that was dropped before the step it must not reach the gradient
    return {"jsd": torch.where(unknown_C, torch.full_like(value_C, math.nan), value_C)}


def _divergence(p_CV: Tensor, q_CV: Tensor, beta: float, top_k: int | None) -> Tensor:
    p_CV, q_CV = p_CV.clamp(min=FLOOR), q_CV.clamp(min=FLOOR)
    if top_k is not None and top_k < q_CV.shape[-1]:
        ids_CK = p_CV.topk(top_k, -1).indices
        p_CV, q_CV = _binned(p_CV, ids_CK), _binned(q_CV, ids_CK)
    if beta == 0:
        return _kl(p_CV, q_CV)
    if beta == 1:
        return _kl(q_CV, p_CV)
    m_CV = torch.logaddexp(p_CV + math.log(beta), q_CV + math.log1p(-beta))
    return beta * _kl(p_CV, m_CV) + (1 - beta) * _kl(q_CV, m_CV)


def _binned(logp_CV: Tensor, ids_CK: Tensor) -> Tensor:
    """Log-probabilities of these ids and, last, of all others together: (C, K + 1)."""
    others_CV = logp_CV.scatter(-1, ids_CK, -math.inf)
    return torch.cat([logp_CV.gather(-1, ids_CK), others_CV.logsumexp(-1, keepdim=True)], -1)


def _kl(of_CV: Tensor, to_CV: Tensor) -> Tensor:
    return (of_CV.exp() * (of_CV - to_CV)).sum(-1)
