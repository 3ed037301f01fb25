"""What tinker-cookbook computes on the client: preferences and group advantages. (The service's own losses run elsewhere.)"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

train_dpo = pytest.importorskip(
    "tinker_cookbook.preference.train_dpo", reason="tinker-cookbook is not installed: make peers", exc_type=ImportError
)

from peer_batches import Update, agree  # noqa: E402

from trinity_core.algo.batch import AdvantageBatch  # noqa: E402
from trinity_core.builtins.advantages.grpo import GroupRelative  # noqa: E402
from trinity_core.builtins.losses.dpo import DPO  # noqa: E402


@pytest.mark.parametrize("seed", range(3))
def test_preferences(seed):
    update = Update(seed, pairs=True)
    here = update.padded()

    def sums(matrix, side):
        return [(matrix[row] * here.mask[row]).sum() for row in update.batch.pairs_P2[:, side]]

    value, metrics = train_dpo.compute_dpo_loss(
        sums(here.logp, 0), sums(here.logp, 1), sums(here.ref, 0), sums(here.ref, 1), 0.3
    )
    agree("dpo", update.ours(DPO(beta=0.3)), update.theirs(here, value))
    assert metrics["dpo_loss"] == value.item()


def test_advantages_are_centred_within_a_group():
    from tinker_cookbook.rl.data_processing import compute_advantages

    rng = np.random.default_rng(0)
    rewards = [rng.normal(size=n).tolist() for n in (2, 5, 8)]
    theirs = compute_advantages([SimpleNamespace(get_total_rewards=lambda group=group: group) for group in rewards])
    mine = GroupRelative(normalize=False)(AdvantageBatch.of(rewards)).advantage
    agree("advantage, centred only (float32 there)", [mine], [torch.cat(theirs).double().numpy()], 1e-6)
