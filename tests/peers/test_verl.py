"""Losses, reductions, KL estimators and advantages against verl's ``core_algos``."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

verl = pytest.importorskip(
    "verl.trainer.ppo.core_algos", reason="verl is not installed: make peers", exc_type=ImportError
)

from peer_batches import HORIZON, Update, agree, differ  # noqa: E402

from trinity_core.algo import kl  # noqa: E402
from trinity_core.algo.batch import AdvantageBatch  # noqa: E402
from trinity_core.algo.objective import Objective  # noqa: E402
from trinity_core.algo.reduce import set_weights  # noqa: E402
from trinity_core.builtins.advantages.gae import GeneralizedAdvantage  # noqa: E402
from trinity_core.builtins.advantages.grpo import GroupRelative  # noqa: E402
from trinity_core.builtins.advantages.reinforce_pp import ReinforcePlusPlus  # noqa: E402
from trinity_core.builtins.advantages.remax import ReMax  # noqa: E402
from trinity_core.builtins.advantages.rloo import LeaveOneOut  # noqa: E402
from trinity_core.builtins.corrections.masked_is import IcePop, MaskedISSequence  # noqa: E402
from trinity_core.builtins.corrections.truncated_is import TruncatedIS, TruncatedISSequence  # noqa: E402
from trinity_core.builtins.losses.cispo import CISPO  # noqa: E402
from trinity_core.builtins.losses.clip_cov import ClipCov  # noqa: E402
from trinity_core.builtins.losses.dppo import DPPO  # noqa: E402
from trinity_core.builtins.losses.geo_mean import GeoMean  # noqa: E402
from trinity_core.builtins.losses.gspo import GSPO  # noqa: E402
from trinity_core.builtins.losses.importance_sampling import ImportanceSampling  # noqa: E402
from trinity_core.builtins.losses.kl_cov import KLCov  # noqa: E402
from trinity_core.builtins.losses.ppo import PPOClip  # noqa: E402
from trinity_core.builtins.losses.sapo import SAPO  # noqa: E402

MODES = {name: name.replace("_", "-") for name in ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum")}
MODES["seq_mean_token_sum_norm"] = "seq-mean-token-sum-norm"
EPS = 1e-6
"""Allowed where theirs divides by a sequence's tokens + 1e-8."""


def actor(**options):
    from verl.workers.config import ActorConfig, PolicyLossConfig

    loss = PolicyLossConfig(**options.pop("policy_loss", {}))
    return ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=loss, **options)


def theirs(update, name, mode="token-mean", weights=None, **options):
    here = update.padded()
    horizon = {"loss_scale_factor": HORIZON} if mode.endswith("norm") else {}
    config = actor(global_batch_info=horizon, **options)
    value, _ = verl.POLICY_LOSS_REGISTRY[name](
        old_log_prob=here.old,
        log_prob=here.logp,
        advantages=here.advantage,
        response_mask=here.mask,
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=None if weights is None else weights(here),
    )
    return update.theirs(here, value)


# --- losses ---


@pytest.mark.parametrize("reduction", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_ppo_under_every_reduction(seed, reduction):
    update = Update(seed)
    agree(
        f"ppo with dual clip, {reduction}",
        update.ours(PPOClip(clip_low=0.2, clip_high=0.28, dual_clip=3.0), reduction),
        theirs(update, "vanilla", MODES[reduction], clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=3.0),
        EPS if reduction == "seq_mean_token_mean" else 1e-12,
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_ratio_without_a_clip_is_importance_sampling(seed):
    update = Update(seed)
    wide = {"clip_ratio_low": 1.0, "clip_ratio_high": 1e9, "clip_ratio_c": 1e9}
    agree(
        "importance sampling (vanilla, unclipped)", update.ours(ImportanceSampling()), theirs(update, "vanilla", **wide)
    )


@pytest.mark.parametrize("seed", range(3))
def test_losses_with_a_definition_in_common(seed):
    update = Update(seed)
    narrow = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.15}
    sequence = "seq-mean-token-mean"
    agree("gspo", update.ours(GSPO(0.1, 0.15)), theirs(update, "gspo", sequence, **narrow), EPS)
    agree("sapo", update.ours(SAPO(1.0, 1.05)), theirs(update, "sapo", sequence, tau_pos=1.0, tau_neg=1.05), EPS)
    agree("cispo", update.ours(CISPO(0.1, 0.15)), theirs(update, "cispo", **narrow))
    agree("geo_mean (GMPO)", update.ours(GeoMean(0.1, 0.15)), theirs(update, "geo_mean", **narrow), EPS)
    tv = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.1, "clip_ratio_c": 20.0}
    agree("dppo (binary total variation)", update.ours(DPPO(delta=0.1)), theirs(update, "dppo_tv", **tv))


@pytest.mark.parametrize("seed", range(3))
def test_corrections_between_sampler_and_trainer(seed):
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    update = Update(seed, sampler_spread=0.5)
    for correction, level, threshold in (
        (TruncatedIS(1.5), "token", 1.5),
        (TruncatedISSequence(1.5), "sequence", 1.5),
        (IcePop(0.5, 1.5), "token", "0.5_1.5"),
        (MaskedISSequence(0.5, 2.0), "sequence", "0.5_2.0"),
    ):

        def weights(here, level=level, threshold=threshold):
            ratio = here.old - here.sampler
            return compute_rollout_correction_weights(ratio, here.mask, level, threshold)[0]

        mine = update.ours(PPOClip(0.2, 0.2, 3.0), corrections=(correction,))
        agree(f"correction {type(correction).__name__} of ppo", mine, theirs(update, "vanilla", weights=weights))


@pytest.mark.parametrize("seed", range(3))
def test_kl_cov(seed):
    update = Update(seed)
    for share, coef in ((0.05, 1.0), (0.2, 0.5)):
        options = {"policy_loss": {"kl_cov_ratio": share, "ppo_kl_coef": coef}}
        agree("kl_cov", update.ours(KLCov(share, coef)), theirs(update, "kl_cov", **options))


@pytest.mark.parametrize("seed", range(3))
def test_clip_cov_where_every_candidate_leaves(seed):
    """The drawing is random on both sides; with a share of 1 all candidates leave. verl does not draw tokens that PPO's clip
    cuts anyway: their gradient is 0 on both sides, their value is not."""
    update = Update(seed)
    options = {"policy_loss": {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.2, "clip_cov_ub": 2.0}}
    mine = update.ours(ClipCov(1.0, 0.2, 2.0))
    other = theirs(update, "clip_cov", **options)
    agree("clip_cov, gradient where every candidate leaves", mine[1:], other[1:])


def test_clip_cov_counts_what_ppo_clips():
    seeds = [Update(seed, spread=1.0) for seed in range(3)]
    options = {"policy_loss": {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.2, "clip_cov_ub": 2.0}}
    mine, other = ([f(update)[:1] for update in seeds] for f in (
        lambda update: update.ours(ClipCov(1.0, 0.2, 2.0)), lambda update: theirs(update, "clip_cov", **options)
    ))  # fmt: skip
    differ("clip_cov, value of candidates that PPO clips", mine, other)


def test_a_small_update_leaves_its_tokens_alone():
    """⌊share · N⌋ is 0 in an update of fewer than 1 / share tokens; verl takes one token all the same."""
    update = Update(0)
    differ("kl_cov, fewer than 1 / share tokens", update.ours(KLCov(share=2e-4)), theirs(update, "kl_cov"))


@pytest.mark.parametrize("seed", range(3))
def test_the_value_loss(seed):
    update = Update(seed)
    rng = np.random.default_rng(seed)
    batch, size = update.batch, update.batch.num_actions
    value, old, returns = rng.normal(size=size), rng.normal(size=size), rng.normal(size=size)
    batch.measured["value"], batch.returns_N = old, returns
    set_weights(batch, "token_mean", by="experience")
    leaf = torch.tensor(value, requires_grad=True)
    share, _ = Objective.critic(0.2)(batch, {"value": leaf})
    (mine,) = torch.autograd.grad(share, [leaf])
    here = update.padded()
    matrices = []
    for array in (value, returns, old):
        matrix = torch.zeros_like(here.mask)
        matrix[batch.row_N, update.column_N] = torch.tensor(array)
        matrices.append(matrix)
    matrices[0].requires_grad_()
    loss, _ = verl.compute_value_loss(*matrices, here.mask, 0.2)
    (other,) = torch.autograd.grad(loss, [matrices[0]])
    agree("value loss, clipped", (share.item(), mine.numpy()), (loss.item(), update.at_actions(other)))


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "abs"])
def test_kl_estimators(name):
    rng = np.random.default_rng(0)
    logp, ref = (torch.tensor(x) for x in (-rng.exponential(2, 500), -rng.exponential(2, 500)))
    found = []
    for estimate in (lambda x: kl.estimate(name, x, ref), lambda x: verl.kl_penalty(x, ref, name)):
        leaf = logp.clone().requires_grad_()
        value = estimate(leaf)
        found.append((value.detach().numpy(), torch.autograd.grad(value.sum(), [leaf])[0].numpy()))
    agree(f"KL estimator {name}", *found)


# --- advantages ---


def groups(seed):
    """Rewards in groups of 2 to 6, lengths, and verl's matrices of them."""
    rng = np.random.default_rng(seed)
    rewards = [rng.integers(0, 4, rng.integers(2, 7)).astype(float).tolist() for _ in range(6)]
    rewards[0] = [2.0] * 4
    flat = [reward for group in rewards for reward in group]
    lengths = rng.integers(1, 9, len(flat))
    mask = (np.arange(9)[None] < lengths[:, None]).astype(float)
    scores = np.zeros_like(mask)
    scores[np.arange(len(flat)), lengths - 1] = flat
    index = np.repeat(np.arange(len(rewards)), [len(group) for group in rewards])
    return rewards, lengths, torch.tensor(scores), torch.tensor(mask), index


def by_token(credit, lengths):
    """What each token is credited with, attempt by attempt."""
    return credit.advantage if credit.per == "token" else np.repeat(credit.advantage, lengths)


@pytest.mark.parametrize("seed", range(5))
def test_advantages_of_groups(seed):
    rewards, lengths, scores, mask, index = groups(seed)
    inside = mask.numpy().astype(bool)
    batch = AdvantageBatch.of(rewards, num_actions_A=lengths)

    def other(name, **options):
        return verl.get_adv_estimator_fn(name)(scores.clone(), response_mask=mask, index=index, **options)[0].numpy()[
            inside
        ]

    agree("advantage grpo", [by_token(GroupRelative()(batch), lengths)], [other("grpo")], 1e-9)
    agree(
        "advantage grpo, not normalised (Dr. GRPO)",
        [by_token(GroupRelative(normalize=False)(batch), lengths)],
        [other("grpo", norm_adv_by_std_in_grpo=False)],
    )
    agree("advantage rloo", [by_token(LeaveOneOut()(batch), lengths)], [other("rloo")])


def bessel(lengths):
    """Theirs whitens by the sample deviation, ours by the population's."""
    return math.sqrt(lengths.sum() / (lengths.sum() - 1))


@pytest.mark.parametrize("seed", range(5))
def test_advantages_of_tokens(seed):
    from verl.trainer.config import AlgoConfig

    rewards, lengths, scores, mask, index = groups(seed)
    inside = mask.numpy().astype(bool)
    flat = [[reward] for group in rewards for reward in group]
    for gamma in (1.0, 0.9):
        mine = by_token(ReinforcePlusPlus(gamma=gamma)(AdvantageBatch.of(flat, num_actions_A=lengths)), lengths)
        whole = verl.get_adv_estimator_fn("reinforce_plus_plus")(scores, mask, config=AlgoConfig(gamma=gamma))[0]
        agree(
            "advantage reinforce_pp, sample deviation for population's",
            [mine],
            [whole.numpy()[inside] * bessel(lengths)],
            1e-6,
        )
        differ("advantage reinforce_pp, deviation of whitening", [mine], [whole.numpy()[inside]])
    mine = by_token(ReinforcePlusPlus(baseline="group")(AdvantageBatch.of(rewards, num_actions_A=lengths)), lengths)
    whole = verl.get_adv_estimator_fn("reinforce_plus_plus_baseline")(scores, mask, index)[0]
    agree("advantage reinforce_pp with baseline, likewise", [mine], [whole.numpy()[inside] * bessel(lengths)], 1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_gae(seed):
    rewards, lengths, scores, mask, _ = groups(seed)
    inside = mask.numpy().astype(bool)
    value = np.random.default_rng(seed).normal(size=inside.shape)
    flat = [[reward] for group in rewards for reward in group]
    batch = AdvantageBatch.of(flat, num_actions_A=lengths, value=value[inside])
    for gamma, lam in ((1.0, 1.0), (0.99, 0.95)):
        credit = GeneralizedAdvantage(gamma=gamma, lam=lam)(batch)
        advantage, returns = verl.compute_gae_advantage_return(scores, torch.tensor(value), mask, gamma, lam)
        agree("GAE, returns", [credit.returns_N], [returns.numpy()[inside]])
        agree(
            "GAE, whitened, sample deviation for population's",
            [credit.advantage],
            [advantage.numpy()[inside] * bessel(lengths)],
            1e-6,
        )


def test_remax():
    """Ours is one number per attempt: the reward less the greedy one's. With a single reward at the end so is theirs."""
    rng = np.random.default_rng(0)
    rewards, greedy = rng.normal(size=(5, 1)), rng.normal(size=5)
    groups_of = [[float(r[0]), float(g)] for r, g in zip(rewards, greedy)]
    batch = AdvantageBatch.of(groups_of, role_A=["sample", "greedy"] * 5)
    mine = ReMax()(batch).advantage[::2]
    found = verl.get_adv_estimator_fn("remax")(
        torch.tensor(rewards), torch.tensor(greedy), torch.ones(5, 1, dtype=torch.double)
    )
    agree("advantage remax", [mine], [found[0][:, 0].numpy()])
