"""Losses against TRL: the code of its trainers, fed with given log-probabilities instead of a model."""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

trl = pytest.importorskip("trl", reason="TRL is not installed: make peers", exc_type=ImportError)

from peer_batches import HORIZON, Update, agree, differ  # noqa: E402

from trinity_core.algo.loss_batch import LossBatch  # noqa: E402
from trinity_core.builtins.corrections.off_policy_mask import OffPolicyMask  # noqa: E402
from trinity_core.builtins.losses.cispo import CISPO  # noqa: E402
from trinity_core.builtins.losses.dpo import DPO  # noqa: E402
from trinity_core.builtins.losses.gspo import GSPO  # noqa: E402
from trinity_core.builtins.losses.hinge import Hinge  # noqa: E402
from trinity_core.builtins.losses.ipo import IPO  # noqa: E402
from trinity_core.builtins.losses.jsd import divergence  # noqa: E402
from trinity_core.builtins.losses.ppo import PPOClip  # noqa: E402
from trinity_core.builtins.losses.sapo import SAPO  # noqa: E402
from trinity_core.builtins.losses.sppo import SPPO  # noqa: E402
from trinity_core.config.schema import Kl  # noqa: E402


class NoSynchronisation:
    """What the trainers ask of accelerate in one process."""

    device = torch.device("cpu")
    num_processes = 1
    sync_gradients = True

    def gather(self, x):
        return x

    gather_for_metrics = gather

    def reduce(self, x, reduction):
        return x


def grpo_trainer(here, **options):
    """A GRPOTrainer without model and data: only what its loss reads."""
    trainer = object.__new__(trl.GRPOTrainer)
    args = {"delta": None, "use_bias_correction_kl": False, "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
    settings = {
        "loss_type": "grpo",
        "beta": 0.0,
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "importance_sampling_level": "token",
        "max_completion_length": HORIZON,
        "off_policy_mask_threshold": None,
        **options,
    }
    rest = {
        "args": SimpleNamespace(steps_per_generation=1, **args),
        "accelerator": NoSynchronisation(),
        "model": SimpleNamespace(training=False),
        "top_entropy_quantile": 1.0,
        "aux_loss_enabled": False,
        "use_vllm": False,
        "_entropy_bonus_enabled": False,
        "_metrics": {"eval": defaultdict(list)},
        "_get_per_token_logps_and_entropies": lambda *_, **__: (here.logp, torch.zeros_like(here.logp), None),
    }
    for name, value in {**settings, **rest}.items():
        setattr(trainer, name, value)
    return trainer


def grpo_loss(update, **options):
    here = update.padded()
    ids = torch.zeros_like(here.mask, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": here.mask,
        "advantages": torch.tensor(update.advantage_B),
        "old_per_token_logps": here.old,
        "ref_per_token_logps": here.ref,
        "sampling_per_token_logps": here.sampler,
        "num_items_in_batch": here.mask.sum(),
    }
    return update.theirs(here, grpo_trainer(here, **options)._compute_loss(None, inputs))


@pytest.mark.parametrize("seed", range(3))
def test_losses_of_groups(seed):
    update = Update(seed)
    ppo = PPOClip(0.2, 0.28)
    agree("grpo (seq_mean_token_mean)", update.ours(ppo, "seq_mean_token_mean"), grpo_loss(update, loss_type="grpo"))
    agree("bnpo, dapo (token_mean)", update.ours(ppo, "token_mean"), grpo_loss(update, loss_type="bnpo"))
    agree("bnpo, dapo (token_mean)", update.ours(ppo, "token_mean"), grpo_loss(update, loss_type="dapo"))
    agree(
        "dr_grpo (seq_mean_token_sum_norm)",
        update.ours(ppo, "seq_mean_token_sum_norm"),
        grpo_loss(update, loss_type="dr_grpo"),
    )
    agree("sapo (temperatures in float32)", update.ours(SAPO()), grpo_loss(update, loss_type="sapo"), 1e-5)
    # theirs says the largest weight, ours its distance from 1
    agree("cispo", update.ours(CISPO(None, 0.28)), grpo_loss(update, loss_type="cispo", epsilon_high=1.28))


@pytest.mark.parametrize("seed", range(3))
def test_one_ratio_for_a_sequence(seed):
    """Theirs differentiates the mean log-ratio, ours each token's own: with one advantage per sequence the same."""
    update = Update(seed)
    found = grpo_loss(update, importance_sampling_level="sequence", epsilon_low=0.1, epsilon_high=0.15)
    agree("gspo", update.ours(GSPO(0.1, 0.15)), found)


@pytest.mark.parametrize("seed", range(3))
def test_a_kl_term_beside_the_policys(seed):
    update = Update(seed)
    update.batch.coef = {"kl": 0.1}
    mine = update.ours(PPOClip(0.2, 0.28), "seq_mean_token_mean", kl=Kl("k3", 0.1))
    agree("grpo with k3 to the reference", mine, grpo_loss(update, beta=0.1))


@pytest.mark.parametrize("seed", range(3))
def test_sequences_that_the_policy_has_left(seed):
    update = Update(seed, sampler_spread=0.5)
    mine = update.ours(PPOClip(0.2, 0.28), "seq_mean_token_mean", corrections=(OffPolicyMask(0.05),))
    agree("off-policy sequence mask of grpo", mine, grpo_loss(update, off_policy_mask_threshold=0.05))
    without = update.ours(PPOClip(0.2, 0.28), "seq_mean_token_mean")
    assert abs(mine[0] - without[0]) > 1e-6


# --- pairs ---


def pair_loss(update, kind, *, beta=0.1, label_smoothing=0.0):
    """DPOTrainer's loss; sequences go in as [chosen, rejected]."""
    here, batch = update.padded(), update.batch
    rows = batch.pairs_P2.T.reshape(-1).tolist()
    mask = torch.cat([torch.zeros(len(rows), 1), here.mask[rows]], 1)  # theirs drops the first position

    fields = torch.zeros_like(here.mask[rows])

    def model(**_):
        logp = torch.where(here.mask[rows] > 0, here.logp[rows], 0.0)
        return SimpleNamespace(log_probs=logp, entropy=fields, mean_logits=fields, is_top1=fields > 0)

    trainer = object.__new__(trl.DPOTrainer)
    settings = {
        "accelerator": NoSynchronisation(),
        "model": SimpleNamespace(training=False),
        "aux_loss_enabled": False,
        "ld_alpha": None,
        "precompute_ref_logps": True,
        "f_divergence_type": "reverse_kl",
        "loss_types": [kind],
        "loss_weights": [1.0],
        "beta": beta,
        "label_smoothing": label_smoothing,
        "use_weighting": False,
        "_metrics": {"eval": defaultdict(list)},
        "_total_train_tokens": 0,
    }
    for name, value in settings.items():
        setattr(trainer, name, value)
    ids = torch.zeros_like(mask, dtype=torch.long)
    reference = (here.ref[rows] * here.mask[rows]).sum(1).chunk(2)
    inputs = {"input_ids": ids, "attention_mask": ids + 1, "completion_mask": mask}
    inputs |= {"ref_chosen_logps": reference[0], "ref_rejected_logps": reference[1]}
    loss = trainer._compute_loss(model, inputs, False)
    metrics = {name: values[0] for name, values in trainer._metrics["eval"].items() if name.startswith("rewards/")}
    return update.theirs(here, loss), metrics


@pytest.mark.parametrize("seed", range(3))
def test_losses_of_pairs(seed):
    update = Update(seed, pairs=True)
    agree("dpo", update.ours(DPO()), pair_loss(update, "sigmoid")[0])
    agree("dpo", update.ours(DPO(beta=0.7)), pair_loss(update, "sigmoid", beta=0.7)[0])
    agree("hinge", update.ours(Hinge(beta=0.7)), pair_loss(update, "hinge", beta=0.7)[0])


@pytest.mark.parametrize("seed", range(3))
def test_rewards_of_pairs(seed):
    update = Update(seed, pairs=True)
    update.ours(DPO())
    metrics = DPO()(LossBatch(update.batch, {"logp": torch.tensor(update.logp)}, DPO().needs())).metrics
    names = {"chosen": "chosen", "rejected": "rejected", "margin": "margins", "accuracy": "accuracies"}
    found = pair_loss(update, "sigmoid")[1]
    mine = [metrics[name].double().mean().item() for name in names]
    agree(
        "dpo, metrics", [mine], [[found[f"rewards/{name}"] for name in names.values()]], 1e-6
    )  # theirs averages in float32


@pytest.mark.parametrize("seed", range(3))
def test_ipo_takes_sums_and_theirs_means(seed):
    """Eq. 17 with the answer as one action against its form with means over tokens, which TRL says its authors ran. Where every
    side has one token they are the same."""
    update = Update(seed, pairs=True)
    differ("ipo, sums against means over tokens", update.ours(IPO()), pair_loss(update, "ipo")[0])
    update = Update(seed, pairs=True, pair_tokens=1)
    agree("ipo, sides of one token", update.ours(IPO()), pair_loss(update, "ipo")[0])


@pytest.mark.parametrize("seed", range(3))
def test_label_smoothing_is_conservative_and_theirs_robust(seed):
    """cDPO weighs both labels; TRL's *robust* subtracts the wrong one and rescales."""
    update = Update(seed, pairs=True)
    differ(
        "dpo with label smoothing against robust",
        update.ours(DPO(label_smoothing=0.1)),
        pair_loss(update, "robust", label_smoothing=0.1)[0],
    )


@pytest.mark.parametrize("seed", range(3))
def test_sppo_of_certain_wins(seed):
    """TRL's *sppo_hard* is a pair of which one always wins: p̂ − ½ = ±½ and η = 1 / β, both sides summed. Its reference is our
    old policy."""
    update = Update(seed, num_groups=0, pairs=True)
    batch = update.batch
    batch.measured["old_logp"] = batch.measured["ref_logp"]
    chosen = np.isin(batch.row_N, batch.pairs_P2[:, 0])
    batch.advantage_N = np.where(chosen, 0.5, -0.5)
    value, gradient = pair_loss(update, "sppo_hard", beta=0.5)[0]
    agree("sppo (sppo_hard)", update.ours(SPPO(eta=2.0)), (value / 2, gradient / 2))


# --- distillation ---


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_divergence_of_distillation(beta):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.experimental.gkd.gkd_trainer import GKDTrainer
    rng = np.random.default_rng(0)
    student, teacher = (torch.tensor(2 * rng.normal(size=(3, 7, 50))) for _ in range(2))
    labels = torch.tensor(rng.integers(0, 2, (3, 7)) * 100 - 100)
    found = []
    for compute in (
        lambda x: divergence(x[labels != -100], {"teacher_logits_CV": teacher[labels != -100]}, beta=beta, top_k=None)[
            "jsd"
        ].mean(),
        lambda x: GKDTrainer.generalized_jsd_loss(x, teacher, labels=labels, beta=beta),
    ):
        leaf = student.clone().requires_grad_()
        value = compute(leaf)
        found.append((value.item(), torch.autograd.grad(value, [leaf])[0].numpy()))
    agree("jsd (GKD, eq. 1)", *found)
