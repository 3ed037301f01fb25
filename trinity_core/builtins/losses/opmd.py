"""Policy mirror descent with data of any policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trinity_core.algo import LossBatch, LossOutput
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss


@dataclass(frozen=True)
class OPMD(Loss):
    """``−A logp / (1 + τ)``, the baseline in the advantage (OPMD in its simple form, arXiv:2505.17826, appendix A), per token.

    No ratio: whoever sampled the tokens, the step is taken along ``A ∇logp``. Goes with ``advantage=opmd``.
    """

    claims: ClassVar[frozenset[str]] = frozenset({"inert_at_zero_advantage", "policy_gradient_at_ratio_1"})

    tau: float = 1.0
    """Strength τ of the tie to the policy of the last iteration: divides the loss by ``1 + tau``. 0 or more."""

    def __post_init__(self) -> None:
        if self.tau < 0:
            raise ConfigError(f"loss.tau: {self.tau} must be 0 or more")

    def __call__(self, batch: LossBatch) -> LossOutput:
        return LossOutput.per_token(-batch.advantage_N * batch.logp_N / (1 + self.tau))
