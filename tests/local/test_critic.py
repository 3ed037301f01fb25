"""The critic of ``local``: a model beside the policy, with a head of one number and an optimizer of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.local.helpers import batch, distance, gradient_of, objective
from trinity_core.algo.batch import TrainBatch
from trinity_core.algo.objective import Objective
from trinity_core.builtins.backends.local import Local
from trinity_core.config.schema import Critic, Lora
from trinity_core.errors import CheckpointError, RunError
from trinity_core.testing.fakes import config_for
from trinity_core.testing.tiny import make_tiny
from trinity_core.testing.toys import ActorCritic

LORA = Lora(rank=4, alpha=8.0)
VALUE = Objective.critic(0.2)
ONLY = frozenset({"value"})
both_kinds = pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])


def opened(make_run: Any, dtype: str = "float32", lora: Lora | None = None, critic: Any = None, **local: Any) -> Any:
    run = make_run(dtype, lora=lora)
    run.config = dataclasses.replace(run.config, critic=critic or Critic(lr=1e-2))
    return Local(**local).open(run)


def valued(live: Any, seed: int = 0) -> TrainBatch:
    """A batch with returns in [-1, 1], and the values as they are now."""
    made = batch(seed)
    made.returns_N = np.random.default_rng(seed + 100).uniform(-1, 1, made.num_actions)
    made.measured["value"] = live.measure(made, "critic", ONLY)["value"]
    made.coef = {"value": 0.5}
    return made


def train(live: Any, seed: int = 0, lr_scale: float = 1.0) -> Any:
    return live.update(valued(live, seed), "critic", VALUE, lr_scale=lr_scale)


def test_values_begin_at_zero_and_the_first_loss_follows(make_run: Any) -> None:
    # V = 0 and V_old = 0: each token's value is ½ max(ret², (0 − ret)²) = ½ ret², times coef ½, mean over the tokens
    live = opened(make_run)
    made = valued(live)
    assert made.measured["value"].tolist() == [0.0] * made.num_actions
    result = live.update(made, "critic", VALUE, lr_scale=1.0)
    assert result.loss == pytest.approx(0.25 * float(np.mean(made.returns_N**2)), rel=1e-6)
    assert result.lr == 1e-2 and 0 < result.moved <= 1


@both_kinds
def test_values_learn_their_returns(make_run: Any, lora: Lora | None) -> None:
    """Every token that ends in the same place has the same return: by then the loss is a hundredth of the first."""
    live = opened(make_run, lora=lora)
    made = valued(live)
    made.returns_N = np.where(made.tokens_T[made.action_N - 1] % 2 == 0, 1.0, -1.0)  # what the predictor's token says
    first = None
    for _ in range(60):
        made.measured["value"] = live.measure(made, "critic", ONLY)["value"]
        loss = live.update(made, "critic", VALUE, lr_scale=1.0).loss
        first = first or loss
    assert loss < first / 100


@both_kinds
def test_the_critic_s_step_leaves_the_policy_and_the_policy_s_the_critic(make_run: Any, lora: Lora | None) -> None:
    live = opened(make_run, lora=lora)
    policy = live.digest()
    train(live)
    assert live.digest() == policy
    made = valued(live, 3)
    assert np.abs(made.measured["value"]).max() > 0
    live.update(batch(), "policy", objective(), lr_scale=1.0)
    assert live.digest() != policy
    assert np.array_equal(live.measure(made, "critic", ONLY)["value"], made.measured["value"])


def test_the_policy_s_step_is_the_same_beside_a_critic(make_run: Any) -> None:
    alone, beside = Local().open(make_run()), opened(make_run)
    train(beside)
    for live in (alone, beside):
        live.update(batch(), "policy", objective(), lr_scale=1.0)
    assert alone.digest() == beside.digest()


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("micro_tokens", [4096, 40, 1])
@both_kinds
def test_the_critic_s_gradient_does_not_depend_on_the_cut(
    make_run: Any, dtype: str, limit: float, micro_tokens: int, lora: Lora | None
) -> None:
    plain = opened(make_run, dtype, lora, share_prefix=False)
    cut = opened(make_run, dtype, lora, micro_tokens=micro_tokens)
    for live in (plain, cut):  # a head of zeros hides the body's gradient
        with torch.no_grad():
            live.critic.value_head.weight.copy_(torch.linspace(-1, 1, 32))
    made = valued(plain)
    assert distance(gradient_of(cut, made, VALUE, "critic"), gradient_of(plain, made, VALUE, "critic")) <= limit


def test_gradient_checkpointing_changes_no_value(make_run: Any) -> None:
    plain, thrifty = opened(make_run), opened(make_run, gradient_checkpointing=True)
    made = valued(plain)
    assert distance(gradient_of(thrifty, made, VALUE, "critic"), gradient_of(plain, made, VALUE, "critic")) <= 1e-5


def test_measuring_and_training_forward_agree(make_run: Any) -> None:
    """Dropout is silent in both: after a step that moves nothing, the clip is not felt."""
    live = opened(make_run)
    train(live)
    made = valued(live)
    result = live.update(made, "critic", VALUE, lr_scale=0.0)
    error_N = made.measured["value"] - made.returns_N
    assert result.loss == pytest.approx(0.25 * float(np.mean(error_N**2)), rel=1e-6) and result.moved == 0


@both_kinds
def test_the_critic_goes_on_bit_for_bit(make_run: Any, tmp_path: Path, lora: Lora | None) -> None:
    (tmp_path / "saved").mkdir()
    live = opened(make_run, lora=lora)
    train(live, 1)
    live.save(tmp_path / "saved")
    train(live, 2)
    again = opened(make_run, lora=lora)
    train(again, 5)
    again.load(tmp_path / "saved")
    train(again, 2)
    for name, parameter in live.learners["critic"].trained.items():
        assert torch.equal(parameter, again.learners["critic"].trained[name]), name
    from safetensors import safe_open

    with safe_open(tmp_path / "saved" / "critic_weights.safetensors", "pt") as file:
        names = set(file.keys())
    assert names == set(live.learners["critic"].trained)
    assert lora is None or all("lora_" in name or name.startswith("value_head.") for name in names)


def test_a_checkpoint_of_the_other_kind_is_refused_and_changes_nothing(make_run: Any, tmp_path: Path) -> None:
    without, beside = tmp_path / "without", tmp_path / "with"
    without.mkdir()
    beside.mkdir()
    alone, live = Local().open(make_run()), opened(make_run)
    train(live)
    alone.save(without)
    live.save(beside)
    alone.update(batch(), "policy", objective(), lr_scale=1.0)
    before = alone.digest()
    with pytest.raises(CheckpointError, match="has no critic, and this run has one"):
        live.load(without)
    with pytest.raises(CheckpointError, match="has a critic, and this run has none"):
        alone.load(beside)
    assert alone.digest() == before
    data = bytearray((beside / "critic_optimizer.safetensors").read_bytes())
    data[-5] ^= 0x10
    (beside / "critic_optimizer.safetensors").write_bytes(data)
    live.update(batch(), "policy", objective(), lr_scale=1.0)
    before = live.digest()
    with pytest.raises(CheckpointError, match="critic_optimizer"):
        live.load(beside)
    assert live.digest() == before, "the policy's files were right, and nothing of them was taken"


def test_an_export_has_no_value_head(make_run: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    live = opened(make_run)
    train(live)
    live.export(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert not [name for name in model.state_dict() if "value" in name]
    own = dict(live.policy.module.named_parameters())
    assert all(torch.equal(parameter, own[name]) for name, parameter in model.named_parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_the_critic_holds_no_head_over_the_vocabulary(make_run: Any, tmp_path: Path, tied: bool) -> None:
    make_tiny(tmp_path / "m", tied=tied)
    run = make_run(path=str(tmp_path / "m"))
    run.config = dataclasses.replace(run.config, critic=Critic())
    live = Local().open(run)
    assert not [name for name in live.learners["critic"].trained if "lm_head" in name]
    body = sum(p.numel() for p in live.policy.body.parameters())
    count = sum(p.numel() for p in live.learners["critic"].trained.values())
    assert count == body + 32 + 1
    assert f"{count:,} trained" in live.describe()["critic"]
    assert (np.abs(valued(live).measured["value"]) == 0).all() and train(live).moved > 0


def test_values_are_not_narrowed(make_run: Any) -> None:
    """With bfloat16 products, values are float32: a bfloat16 near 1 has steps of 1/128."""
    for lora in (None, LORA):
        live = opened(make_run, "bfloat16", lora)
        with torch.no_grad():
            live.critic.value_head.bias.fill_(1.001)
        assert live.critic.value_head.weight.dtype == torch.float32
        assert set(live.measure(batch(), "critic", ONLY)["value"]) == {float(np.float32(1.001))}


def test_what_a_critic_cannot_do_is_refused_by_name(make_run: Any) -> None:
    with pytest.raises(RunError, match="critic=value_head"):
        Local().open(make_run()).measure(batch(), "critic", ONLY)
    with pytest.raises(RunError, match="trains policy, not 'critic'"):
        Local().open(make_run()).update(batch(), "critic", VALUE, lr_scale=1.0)
    live = opened(make_run)
    with pytest.raises(RunError, match="gives value, not logp"):
        live.measure(batch(), "critic", frozenset({"logp"}))
    with pytest.raises(RunError, match="value"):
        live.measure(batch(), "policy", ONLY)
    config = config_for()
    loss = dataclasses.replace(config.parts["loss"], component=ActorCritic())
    refused = Local().refuse(dataclasses.replace(config, critic=Critic(), parts={**config.parts, "loss": loss}))
    assert "ActorCritic" in (refused or "")
