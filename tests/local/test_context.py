"""What a model cannot read is not trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.local.helpers import experience, objective
from trinity_core.algo.assemble import assemble
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.backends.local import Local
from trinity_core.errors import DataError
from trinity_core.types import Attempt, Group, Ok, Task


@pytest.mark.parametrize("over", [0, 1])
def test_a_sequence_longer_than_the_models_context_is_refused_with_both_numbers(make_run: Any, over: int) -> None:
    live = Local().open(make_run())
    context = live.policy.module.config.max_position_embeddings
    words = np.random.default_rng(0).integers(3, 250, size=context - 8 + over).tolist()
    task = Task("a", ({"role": "user", "content": "?"},))
    group = Group("run/a", task, [Attempt([experience([5] * 8, words)], task=task, score=Ok(1.0))])
    batch = assemble([group], seed=0, step=0)
    batch.advantage_N = np.ones(batch.num_actions)
    set_weights(batch, "token_mean")
    if over:
        with pytest.raises(DataError, match=f"a sequence of {context + 1} tokens, and .* reads at most {context}"):
            live.update(batch, "policy", objective(), lr_scale=1.0)
    else:
        assert live.update(batch, "policy", objective(), lr_scale=1.0).skipped is None
