"""What an objective says of an update: the same names for every algorithm, over the tokens that count."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trinity_core.algo.batch import LossOutput
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.corrections.masked_is import MaskedIS
from trinity_core.builtins.corrections.truncated_is import TruncatedIS
from trinity_core.builtins.losses.importance_sampling import ImportanceSampling
from trinity_core.builtins.losses.ppo import PPOClip
from trinity_core.builtins.losses.sft import SFT
from trinity_core.config.schema import Kl
from trinity_core.protocols import Loss
from trinity_core.testing.world import World

torch.set_num_threads(1)
EVERYWHERE = {
    *(f"kl/{name}{form}" for name in ("old", "sampler", "ref") for form in ("", "_k3")),
    *("ratio", "ratio/min", "ratio/max", "ratio/p01", "ratio/p50", "ratio/p99"),
    *("loss", "tokens", "kept", "advantage", "entropy"),
}


def said(objective, one):
    return objective(one.batch, one.leaves(objective))[1].summary()


@pytest.mark.parametrize("loss", [PPOClip(), ImportanceSampling(), SFT()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("old", ["measured", "forward", "sampler"])
def test_every_loss_reports_under_the_same_names(loss, old):
    one = World.of(frozenset({"old_logp"}))
    one.batch.coef = {"kl": 0.1}
    summary = said(Objective.of(loss, kl=Kl("k3", 0.1), watch=True, old=old), one)
    assert set(summary) >= EVERYWHERE


def test_divergences_have_a_direction():
    """logp = sampler + .2 = old − .1 = ref + .3. KL(sampler ‖ π) and KL(old ‖ π) by k1: −.2 and .1; KL(π ‖ ref): .3."""
    one = World.of(frozenset({"old_logp"}))
    objective = Objective.of(PPOClip())
    logp_N = one.leaves(objective)["logp"].detach().numpy()
    one.batch.sampler_logp_N = logp_N - 0.2
    one.batch.measured |= {"old_logp": logp_N + 0.1, "ref_logp": logp_N - 0.3}
    summary = said(objective, one)
    found = [summary[f"kl/{name}"] for name in ("sampler", "old", "ref")]
    assert found == pytest.approx([-0.2, 0.1, 0.3])
    assert summary["ratio"] == pytest.approx(np.exp(-0.1))
    # k3 of u = .2, −.1, −.3: e^u − 1 − u
    found = [summary[f"kl/{name}_k3"] for name in ("sampler", "old", "ref")]
    assert found == pytest.approx([0.021403, 0.004837, 0.040818], abs=1e-6)


def test_what_others_wrote_is_in_no_divergence():
    one = World.of(frozenset({"old_logp", "expert"}))
    expert_N = one.batch.population_B[one.batch.row_N] == 2
    objective = Objective.of(PPOClip())
    before = said(objective, one)
    for name in ("old_logp", "ref_logp"):
        one.batch.measured[name][expert_N] += 5.0
    after = said(objective, one)
    assert expert_N.any() and [after[name] for name in EVERYWHERE if name.startswith(("kl/", "ratio"))] == [
        before[name] for name in EVERYWHERE if name.startswith(("kl/", "ratio"))
    ]


class Clips(Loss):
    """Reports every second token as clipped above, none below, and a third metric of its own."""

    def __call__(self, batch):
        place_N = torch.arange(len(batch.logp_N))
        return LossOutput.per_token(
            -batch.logp_N, clipped_high=place_N % 2 == 0, clipped_low=place_N < 0, mine=place_N * 0 + 3.0
        )


def test_shares_of_clipped_tokens_have_one_name_for_all_losses():
    summary = said(Objective.of(Clips()), World.of(frozenset()))
    assert (summary["clip/high"], summary["clip/low"], summary["metric/mine"]) == (0.5, 0.0, 3.0)
    assert not [name for name in summary if "clipped" in name]


def test_a_correction_is_reported_over_tokens_that_count():
    """old − sampler = 1 at the tokens of the first sequence, .5 elsewhere; the first sequence is dropped before the step."""
    one = World.of(frozenset({"old_logp"}))
    first_N = one.batch.row_N == 0
    one.batch.sampler_logp_N = one.batch.measured["old_logp"] - np.where(first_N, 1.0, 0.5)
    objective = Objective.of(PPOClip(), [TruncatedIS(cap=2.0), MaskedIS(high=2.0)])
    share = float(first_N.mean())
    summary = said(objective, one)
    assert summary["correction/TruncatedIS/truncated"] == pytest.approx(share)
    assert summary["correction/MaskedIS/kept"] == pytest.approx(1 - share)
    # what is dropped has no weight: the mean is that of the kept, e^.5
    assert summary["correction/MaskedIS"] == pytest.approx(np.exp(0.5))
    assert summary["correction/MaskedIS/max"] == pytest.approx(np.exp(0.5))
    one.batch.keep_N = ~first_N
    set_weights(one.batch, "token_mean")
    summary = said(objective, one)
    assert summary["correction/TruncatedIS/truncated"] == 0.0 and summary["correction/MaskedIS/kept"] == 1.0
    assert summary["correction/TruncatedIS"] == pytest.approx(np.exp(0.5))
