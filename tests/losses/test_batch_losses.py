"""Losses that look at the whole update: against the papers one token at a time, and by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from walk_tokens import flat, kernel, logp_of, walk, world_for

from trinity_core.algo.cut import cut
from trinity_core.algo.loss_batch import LossBatch
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.losses.clip_cov import ClipCov
from trinity_core.builtins.losses.kl_cov import KLCov
from trinity_core.builtins.losses.m2po import M2PO
from trinity_core.errors import ConfigError
from trinity_core.testing.contracts import loss as contract
from trinity_core.testing.rules import NotApplicable

CLIP = ClipCov(share=0.25, cov_low=0.0)
KL = KLCov(share=0.3, coef=0.5)
LOSSES = (ClipCov(), CLIP, ClipCov(share=1.0, cov_low=0.5, cov_high=1.0), KLCov(), KL, M2PO(), M2PO(threshold=0.0))


def own(tokens):
    return [token for token in tokens if not token.expert and token.keep]


def covariances(tokens):
    """Eq. 10, by hand."""
    members = own(tokens)
    mean_logp = sum(token.logp for token in members) / len(members)
    mean_advantage = sum(token.advantage for token in members) / len(members)
    return {id(token): (token.logp - mean_logp) * (token.advantage - mean_advantage) for token in members}


def number(loss, tokens):
    """⌊r · N⌋ in whole numbers of ten-thousandths."""
    return round(loss.share * 10_000) * len(own(tokens)) // 10_000


def out_of(loss, tokens):
    """The tokens that clip_cov and m2po leave out, or kl_cov ties: one by one."""
    if isinstance(loss, M2PO):
        region = [t for t in own(tokens) if t.advantage * (t.logp - t.sampler) > 0]
        left: list = []
        while region and sum((t.logp - t.sampler) ** 2 for t in region) / len(region) > loss.threshold:
            worst = max(region, key=lambda t: (t.logp - t.sampler) ** 2)
            region.remove(worst)
            left.append(worst)
        return {id(token) for token in left}
    cov = covariances(tokens)
    if isinstance(loss, KLCov):
        ranked = sorted(own(tokens), key=lambda t: (-cov[id(t)], t.uniform))
    else:
        ranked = sorted(
            (t for t in own(tokens) if loss.cov_low <= cov[id(t)] <= loss.cov_high), key=lambda t: t.uniform
        )
    return {id(token) for token in ranked[: number(loss, tokens)]}


def by_token(loss, token, out):
    """Value and gradient of one token."""
    a = token.advantage
    if isinstance(loss, M2PO):
        r = 1.0 if math.isnan(token.sampler) else math.exp(token.logp - token.sampler)
        return (0.0, 0.0) if out else (-a * r, -a * r)
    r = token.ratio
    if isinstance(loss, KLCov):
        d = token.logp - token.old
        return (-a * r + loss.coef * abs(d), -a * r + loss.coef * math.copysign(1.0, d)) if out else (-a * r, -a * r)
    clipped = min(max(r, 1 - loss.clip_low), 1 + loss.clip_high)
    if out:
        return 0.0, 0.0
    return max(-a * r, -a * clipped), (-a * r if -a * r >= -a * clipped else 0.0)


def reference(loss, tokens):
    """The mean over all tokens that count, those left out too."""
    out = out_of(loss, tokens)
    total, gradient = 0.0, []
    for token in tokens:
        value, slope = by_token(loss, token, id(token) in out) if token.keep else (0.0, 0.0)
        total += value / len(tokens)
        gradient.append(slope / len(tokens))
    return total, gradient, len(out)


def centred(world):
    """Log-probabilities far apart, so that covariances are as large as the bounds."""
    world.logits_NV *= 3.0


def some_dropped(world):
    centred(world)
    world.batch.keep_N = np.arange(world.batch.num_actions) % 4 != 1


@pytest.mark.parametrize("change", [centred, some_dropped], ids=lambda change: change.__name__)
@pytest.mark.parametrize("also", [(), ("expert",)], ids=("own", "with experts"))
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_loss_of_the_whole_update_is_the_papers(loss, seed, also, change):
    world = world_for(loss, seed, also=also, change=change)
    logp = logp_of(world)
    tokens = walk(world.batch, logp)
    value, gradient, count = reference(loss, tokens)
    found = kernel(loss, world.batch, logp)
    assert found.loss == pytest.approx(value, rel=1e-11, abs=1e-13)
    assert found.gradient == pytest.approx(gradient, rel=1e-10, abs=1e-13)
    assert loss not in (CLIP, KL, M2PO(threshold=0.0)) or 0 < count < len(own(tokens))


def test_what_experts_wrote_and_what_was_dropped_is_in_no_statistic():
    """Other log-probabilities and advantages at tokens of experts, and at dropped ones, choose no other tokens."""
    for loss, name in ((CLIP, "left_out"), (KL, "tied"), (M2PO(threshold=0.01), "left_out")):
        world = world_for(loss, 1, also={"expert"}, change=some_dropped)
        batch, logp = world.batch, np.array(logp_of(world))
        outside = (batch.population_B[batch.row_N] == 2) | ~batch.keep_N
        moved = np.where(outside, logp - 50.0, logp)
        other = dataclasses.replace(batch, advantage_N=np.where(outside, 99.0, batch.advantage_N))
        chosen = [
            loss(LossBatch(one, {"logp": torch.tensor(now)}, loss.needs())).metrics[name].numpy()
            for one, now in ((batch, logp), (other, moved))
        ]
        assert chosen[0].any() and not (chosen[0] & outside).any()
        assert np.array_equal(*chosen)


# --- by hand ---


def four_tokens(loss, **arrays):
    """One sequence of four own tokens."""
    world = world_for(loss, 0, also={"old_logp"})
    row = next(row for row in range(len(world.batch)) if (world.batch.row_N == row).sum() == 5)
    batch = world.batch.select([row])
    keep_N = np.array([True] * 4 + [False])
    wide = {name: np.append(np.asarray(array, float), 0.0) for name, array in arrays.items()}
    batch, logp = flat(dataclasses.replace(world, batch=batch), **wide)
    batch.keep_N = keep_N
    set_weights(batch, "token_mean", denominator="kept")
    return batch, logp


LOGP, CREDIT = [-1.0, -2.0, -3.0, -6.0], [2.0, 1.0, -1.0, -2.0]
# means −3 and 0: covariances 2 · 2 = 4, 1 · 1 = 1, 0 · −1 = 0, −3 · −2 = 6


def test_clip_cov_by_hand():
    """From 1 to 5 lie the first two. share .5: ⌊2⌋ leave, both; the mean of 0, 0, 1, 2 (r = 1: −A) is .75, the gradient that of −A/4."""
    loss = ClipCov(share=0.5, cov_low=1.0, cov_high=5.0)
    found = kernel(loss, *four_tokens(loss, logp=LOGP, old=LOGP, advantage=CREDIT))
    assert found.loss == pytest.approx(0.75)
    assert found.gradient == pytest.approx([0, 0, 0.25, 0.5, 0])
    assert found.stats["metric/left_out"] == 0.5


def test_clip_cov_draws_among_the_candidates():
    """share .25: ⌊1⌋ leaves, the candidate with the smaller random number; over many updates each does."""
    loss = ClipCov(share=0.25, cov_low=1.0, cov_high=5.0)
    batch, logp = four_tokens(loss, logp=LOGP, old=LOGP, advantage=CREDIT)
    left = []
    for step in range(40):
        here = dataclasses.replace(batch, step=step)
        uniform = LossBatch(here, {"logp": torch.tensor(logp)}, loss.needs()).uniform_N.tolist()
        gone = [n for n, slope in enumerate(kernel(loss, here, logp).gradient[:4]) if slope == 0]
        assert gone == [0 if uniform[0] < uniform[1] else 1]
        left += gone
    assert {0, 1} == set(left) and 8 < sum(left) < 32


def test_clip_cov_clips_what_stays_as_ppo():
    """r = 1.5 everywhere, nobody leaves: A > 0 is clipped at 1.2, A < 0 is not: (−2.4 − 1.2 + 1.5 + 3) / 4 = .225."""
    loss = ClipCov(share=0.0)
    found = kernel(loss, *four_tokens(loss, logp=LOGP, old=np.array(LOGP) - math.log(1.5), advantage=CREDIT))
    assert found.loss == pytest.approx(0.225)
    assert found.gradient == pytest.approx([0, 0, 0.375, 0.75, 0])


def test_kl_cov_by_hand():
    """d = (.1, −.1, .2, −.2), the two largest covariances are the last token's and the first's. Value of the first:
    −2 e^.1 + 3 · .1 = −1.910342; of the last: 2 e^−.2 + 3 · .2 = 2.237462; the others −e^−.1 = −.904837, e^.2 = 1.221403.
    Mean .160922. Slopes −2.210342 + 3, −.904837, 1.221403, 1.637462 − 3, each / 4."""
    loss = KLCov(share=0.5, coef=3.0)
    old = np.array(LOGP) - np.array([0.1, -0.1, 0.2, -0.2])
    found = kernel(loss, *four_tokens(loss, logp=LOGP, old=old, advantage=CREDIT))
    assert found.loss == pytest.approx(0.160922, abs=1e-6)
    assert found.gradient == pytest.approx([0.197415, -0.226209, 0.305351, -0.340635, 0], abs=1e-6)
    assert found.stats["metric/tied"] == 0.5


def test_of_equal_covariances_a_random_one_is_tied():
    loss = KLCov(share=0.25, coef=1.0)
    batch, logp = four_tokens(loss, logp=LOGP, old=np.array(LOGP) - 0.1, advantage=[1.0] * 4)
    tied = set()
    for step in range(40):
        here = dataclasses.replace(batch, step=step)
        metrics = loss(LossBatch(here, {"logp": torch.tensor(logp)}, loss.needs())).metrics
        assert metrics["tied"].sum() == 1
        tied.add(int(metrics["tied"].nonzero()))
    assert tied == {0, 1, 2, 3}


def test_m2po_by_hand():
    """d = (.1, .2, −.3, .4) with A = (1, 1, −1, −1): the last goes the other way and is in no trust region. Squares .01, .04, .09:
    mean .0467 > .04, so .3 leaves; mean .025 stays. Values −e^.1, −e^.2, 0, e^.4: (−1.105171 − 1.221403 + 1.491825) / 4 = −.208687."""
    loss = M2PO()
    sampler = np.array(LOGP) - np.array([0.1, 0.2, -0.3, 0.4])
    found = kernel(loss, *four_tokens(loss, logp=LOGP, sampler=sampler, advantage=[1, 1, -1, -1]))
    assert found.loss == pytest.approx(-0.208687, abs=1e-6)
    assert found.gradient == pytest.approx([-0.276293, -0.305351, 0, 0.372956, 0], abs=1e-6)


@pytest.mark.parametrize(
    ("moved", "left_out"),
    [
        ([0.1, 0.2, 0.2, 0.1], 0),  # mean (.01 + .04 + .04 + .01) / 4 = .025
        ([0.2, 0.2, 0.2, 0.2], 0),  # exactly at the threshold: nobody leaves
        ([0.3, 0.3, 0.3, 0.1], 3),  # .07; one gone .0633, two .05, three .01
        ([0.3, 0.3, 0.1, 0.1], 2),  # .05; one gone (.09 + .02) / 3 = .0367 is enough, but its equal goes with it
        ([0.5, 0.5, 0.5, 0.5], 4),  # nobody may stay
        ([0.0, 0.0, 0.0, 9.0], 1),
        ([0.0, 0.0, 0.0, 0.0], 0),
    ],
)
def test_m2po_leaves_out_as_few_as_it_can(moved, left_out):
    loss = M2PO(threshold=0.04 + 1e-12)
    batch, logp = four_tokens(loss, logp=[-1.0] * 4, sampler=-1.0 - np.array(moved), advantage=[1.0] * 4)
    metrics = loss(LossBatch(batch, {"logp": torch.tensor(logp)}, loss.needs())).metrics
    assert metrics["left_out"].sum() == left_out


def test_m2po_trains_tokens_that_nobody_sampled_at_ratio_one():
    loss = M2PO()
    batch, logp = four_tokens(loss, logp=LOGP, sampler=[math.nan] * 4, advantage=CREDIT)
    found = kernel(loss, batch, logp)
    assert found.loss == pytest.approx(0.0) and found.gradient == pytest.approx([-0.5, -0.25, 0.25, 0.5, 0])


# --- all of them ---


@pytest.mark.parametrize("loss", [CLIP, KL, M2PO(threshold=0.01)], ids=repr)
def test_the_whole_update_is_seen_however_it_is_cut(loss):
    """In one pass the update is one unit; in two passes any cut gives the same gradient."""
    world = world_for(loss, 3)
    objective = Objective.of(loss)
    assert len(cut(world.batch, scope=objective.scope, max_tokens=1)) == 1
    whole = world.gradient(objective)
    pieces = cut(world.batch, scope="sequence", max_tokens=1)
    assert len(pieces) == len(world.batch)
    assert whole.differs(world.gradient(objective, cuts=pieces, two_pass=True)) < 1e-12
    assert whole.differs(world.gradient(objective, cuts=pieces)) > 1e-3


@pytest.mark.parametrize("rule", contract.RULES)
@pytest.mark.parametrize("loss", [CLIP, KLCov(share=0.5), M2PO(threshold=0.01), M2PO(threshold=0.3)], ids=repr)
def test_the_contract_holds_where_tokens_are_chosen(loss, rule):
    try:
        contract.RULES[rule](loss)
    except NotApplicable:
        pytest.skip("not applicable")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ClipCov(share=-0.1), "loss.share"),
        (lambda: ClipCov(cov_low=6.0), "loss.cov_low"),
        (lambda: ClipCov(clip_low=-1.0), "loss.clip_low"),
        (lambda: KLCov(share=1.5), "loss.share"),
        (lambda: KLCov(coef=-1.0), "loss.coef"),
        (lambda: M2PO(threshold=-0.1), "loss.threshold"),
    ],
)
def test_a_share_or_bound_without_meaning_is_refused(make, field):
    with pytest.raises(ConfigError, match=field):
        make()
