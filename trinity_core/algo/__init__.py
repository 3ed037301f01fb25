"""The arithmetic of a training step: batches, reductions, objectives, KL estimators.

What an advantage, loss or correction works with comes from here: ``from trinity_core.algo import LossBatch, LossOutput``.
Names are imported when first used, so that an advantage never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity_core.algo.batch import AdvantageBatch as AdvantageBatch
    from trinity_core.algo.batch import Credit as Credit
    from trinity_core.algo.batch import LossOutput as LossOutput
    from trinity_core.algo.batch import Term as Term
    from trinity_core.algo.batch import TrainBatch as TrainBatch
    from trinity_core.algo.loss_batch import LossBatch as LossBatch
    from trinity_core.algo.objective import Objective as Objective

HOMES = {
    "AdvantageBatch": "batch",
    "Credit": "batch",
    "LossOutput": "batch",
    "Term": "batch",
    "TrainBatch": "batch",
    "LossBatch": "loss_batch",
    "Objective": "objective",
}
"""Public name -> the module it lives in."""


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
