"""Sampler against trainer, inside the objective: what a correction does is counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trinity_core.algo.assemble import assemble
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.corrections.masked_is import MaskedISSequence
from trinity_core.builtins.corrections.truncated_is import TruncatedIS
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.builtins.trackers.alarms import RULES
from trinity_core.protocols import Correction
from trinity_core.testing.fakes import fake_group
from trinity_core.testing.world import World

torch.set_num_threads(1)


class DropAll(Correction):
    """What a mask of whole sequences does when ratios explode: nothing is left."""

    def __call__(self, batch):
        return torch.ones_like(batch.sampler_logp_N), torch.zeros_like(batch.sampler_logp_N, dtype=torch.bool)


def test_the_share_that_a_correction_leaves_is_told():
    """LPM-04: when everything is masked the statistics say 0 kept, so an alarm can fire; the loss is 0 and finite."""
    world = World.of(frozenset({"old_logp"}))
    found = world.gradient(Objective.of(PPOClip(), [DropAll()]))
    assert found.stats.summary()["correction/DropAll/kept"] == 0.0
    assert found.loss == 0.0 and not found.gradient.any()


def test_a_token_ratio_does_not_grow_with_the_length():
    """LPM-04: .012 per token over 100 tokens is e^1.2 = 3.32 for a sequence; per token it is 1.0121, and none is truncated."""
    world = World.of(frozenset({"old_logp"}))
    world.batch.sampler_logp_N = world.batch.measured["old_logp"] - 0.012
    summary = world.gradient(Objective.of(PPOClip(), [TruncatedIS()])).stats.summary()
    assert summary["correction/TruncatedIS"] == pytest.approx(np.exp(0.012))
    assert summary["correction/TruncatedIS/truncated"] == 0.0
    assert np.exp(0.012 * 100) == pytest.approx(3.32, abs=0.01)


def test_a_sequence_ratio_that_explodes_is_told_and_sounds_the_alarm():
    """LPM-04: .012 at each of 100 tokens: e^1.2 = 3.32 is above 3, so a mask of whole sequences leaves nothing."""
    batch = assemble([fake_group([1.0, 0.0], [100, 10])], seed=0, step=0)
    batch.measured["old_logp"] = np.full(110, -1.0)
    batch.sampler_logp_N = np.full(110, -1.012)
    batch.advantage_N = np.ones(110)
    set_weights(batch, "token_mean")
    leaves = {"logp": torch.full((110,), -1.0, dtype=torch.float64)}
    summary = Objective.of(PPOClip(), [MaskedISSequence(high=3.0)])(batch, leaves)[1].summary()
    kept = summary["correction/MaskedISSequence/kept"]
    assert kept == pytest.approx(10 / 110)  # the short one has e^.12 = 1.127
    assert summary["correction/MaskedISSequence"] == pytest.approx(np.exp(0.12))
    assert RULES["correction/*/kept"].broken_by(kept)


def test_divergence_of_sampler_and_trainer_is_a_metric():
    """LPM-13: KL between sampler and trainer is in every step's statistics; it grows with their distance."""
    found = []
    for distance in (0.0, 0.1, 0.5):
        world = World.of(frozenset({"old_logp"}))
        logp_N = world.leaves(Objective.of(PPOClip()))["logp"].detach().numpy()
        world.batch.sampler_logp_N = logp_N + distance
        found.append(world.gradient(Objective.of(PPOClip())).stats.summary())
    assert [one["kl/sampler"] for one in found] == pytest.approx([0.0, 0.1, 0.5])
    # k3 of u = −d: e^−d − 1 + d
    assert [one["kl/sampler_k3"] for one in found] == pytest.approx([0.0, np.exp(-0.1) - 0.9, np.exp(-0.5) - 0.5])
