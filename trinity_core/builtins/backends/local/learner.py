"""Weights that are trained, with an optimizer of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trinity_core.algo.accumulate import Forward
from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.objective import accumulate
from trinity_core.builtins.backends.local.moved import Moved
from trinity_core.config.schema import Optim
from trinity_core.types import UpdateResult

if TYPE_CHECKING:
    from trinity_core.algo.objective import Objective


class Learner:
    """AdamW over ``trained`` at ``lr``; the rest of ``optim`` is shared by all learners of a run."""

    def __init__(self, trained: Mapping[str, nn.Parameter], optim: Optim, lr: float) -> None:
        self.trained, self.optim, self.lr = dict(trained), optim, lr
        self.optimizer = torch.optim.AdamW(
            list(self.trained.values()),
            lr=lr,
            betas=optim.betas,
            eps=optim.eps,
            weight_decay=optim.weight_decay,
            fused=True,
        )
        self.moved = Moved(self.trained)

    def update(
        self,
        objective: Objective,
        batch: TrainBatch,
        forward: Forward,
        cuts: Sequence[NDArray[np.int64]],
        *,
        two_pass: bool,
        lr_scale: float,
    ) -> UpdateResult:
        """One step on the sum of ``objective`` over the ``cuts`` of the batch. A step that is not finite is not taken, and says
        so."""
        self.optimizer.zero_grad(set_to_none=True)
        loss, stats = accumulate(objective, batch, cuts, forward, two_pass=two_pass)
        if not cuts:  # a gradient of 0 is a step too: moments decay
            for parameter in self.trained.values():
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self.trained.values() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients, foreach=True)) if gradients else 0.0
        lr = self.lr * lr_scale
        result = UpdateResult(loss, norm, lr, stats.summary())
        if not np.isfinite([loss, norm]).all():
            self.optimizer.zero_grad(set_to_none=True)
            result.skipped = f"not finite: loss {loss}, gradient norm {norm}"
            return result
        if self.optim.clip_norm is not None and norm > self.optim.clip_norm:
            torch._foreach_mul_(gradients, self.optim.clip_norm / norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.moved.before()
        self.optimizer.step()
        result.moved = self.moved.share()
        self.optimizer.zero_grad(set_to_none=True)
        return result
