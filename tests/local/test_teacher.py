"""The teacher of ``local``: a frozen model whose whole distribution a loss can see, a chunk at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.local.helpers import batch, distance, gradient, objective
from trinity_core.algo.assemble import assemble
from trinity_core.algo.batch import LossOutput, TrainBatch
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.models import head
from trinity_core.config.schema import Teacher
from trinity_core.errors import ModelError, RunError
from trinity_core.protocols import Loss
from trinity_core.run.teacher import BackendTeacher
from trinity_core.testing.fakes import fake_group
from trinity_core.testing.tiny import make_tiny

SEEN: list[torch.Size] = []


def forward_kl(logits_CV: Any, aux: Mapping[str, Any]) -> dict[str, Any]:
    """KL(teacher ‖ student) of each token."""
    SEEN.append(aux["teacher_logits_CV"].shape)
    p_CV, q_CV = aux["teacher_logits_CV"].log_softmax(-1), logits_CV.log_softmax(-1)
    return {"kl": (p_CV.exp() * (p_CV - q_CV)).sum(-1)}


class Distill(Loss):
    def needs(self) -> frozenset[str]:
        return frozenset({"teacher_logits", "vocab:kl"})

    def vocab(self) -> Mapping[str, Any]:
        return {"kl": forward_kl}

    def __call__(self, batch: Any) -> LossOutput:
        return LossOutput.per_token(batch.extra["kl"])


def opened(make_run: Any, path: Path | str, dtype: str = "float32", teacher: Any = None, **local: Any) -> Any:
    run = make_run(dtype)
    run.config = dataclasses.replace(run.config, teacher=Teacher(str(path), dtype=dtype, **(teacher or {})))
    return Local(**local).open(run)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model over the same vocabulary: wider, deeper, with a head of its own."""
    return make_tiny(tmp_path_factory.mktemp("teacher") / "other", hidden=48, layers=3, tied=False, seed=1)


def taught(live: Any, seed: int = 0) -> TrainBatch:
    made = batch(seed)
    made.measured["teacher_hidden"] = live.measure(made, "teacher", frozenset({"hidden"}))["hidden"]
    return made


def by_hand(folder: Path, made: TrainBatch) -> torch.Tensor:
    """log softmax(logits / T) [N, V] at every action token, one plain sequence at a time."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    rows = []
    for b in range(len(made)):
        tokens = torch.from_numpy(made.tokens_T[made.offsets_B1[b] : made.offsets_B1[b + 1]].astype(np.int64))
        with torch.no_grad():
            logits_TV = model(tokens[None]).logits[0]
        for n in np.flatnonzero(made.row_N == b):
            place = int(made.action_N[n] - made.offsets_B1[b]) - 1
            rows.append((logits_TV[place] / float(made.temperature_N[n])).log_softmax(-1))
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_teacher_that_is_the_student_teaches_nothing(make_run: Any, tiny: Path, dtype: str) -> None:
    live = opened(make_run, tiny, dtype)
    assert live.teacher._model is None, "the weights wait for the first measurement"
    made = taught(live)
    asked = frozenset({"logp", "entropy", "topk:5"})
    mine, theirs = live.measure(made, "policy", asked), live.measure(made, "teacher", asked)
    assert all(np.array_equal(mine[name], theirs[name]) for name in ("logp", "entropy", "topk_ids", "topk_logp"))
    found = live.measure(made, "policy", frozenset({"vocab:kl"}), vocabulary={"kl": forward_kl})
    assert set(found) == {"kl"} and found["kl"].tolist() == [0.0] * made.num_actions
    result = live.update(made, "policy", objective(Distill()), lr_scale=1.0)
    assert result.loss == 0.0 and result.grad_norm < 1e-6


def test_log_probabilities_are_the_teacher_s_at_the_call_s_temperature(make_run: Any, other: Path) -> None:
    live = opened(make_run, other)
    made = batch()
    exact_NV = by_hand(other, made)
    found = live.measure(made, "teacher", frozenset({"logp", "entropy", "topk:3"}))
    token_N = made.tokens_T[made.action_N]
    assert np.abs(found["logp"] - exact_NV.numpy()[np.arange(len(token_N)), token_N]).max() < 2e-5
    assert np.abs(found["entropy"] + (exact_NV.exp() * exact_NV).sum(-1).numpy()).max() < 2e-5
    top = exact_NV.topk(3, dim=-1)
    assert found["topk_ids"].dtype == np.int64 and found["topk_ids"].tolist() == top.indices.tolist()
    assert np.abs(found["topk_logp"] - top.values.numpy()).max() < 2e-5


@pytest.mark.parametrize("chunk", [512, 3])
def test_a_loss_sees_the_teacher_s_whole_distribution_a_chunk_at_a_time(
    make_run: Any, other: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setitem(head.head_outputs.__kwdefaults__, "chunk", chunk)
    live = opened(make_run, other)
    made = taught(live)
    assert made.measured["teacher_hidden"].shape == (made.num_actions, 48)
    assert made.measured["teacher_hidden"].dtype == np.float32
    SEEN.clear()
    result = live.update(made, "policy", objective(Distill()), lr_scale=1.0)
    p_NV, q_NV = by_hand(other, made), by_hand(tiny, made)
    assert result.loss == pytest.approx(float((p_NV.exp() * (p_NV - q_NV)).sum(-1).mean()), rel=1e-5)
    assert {shape[1] for shape in SEEN} == {259} and max(shape[0] for shape in SEEN) <= chunk


@pytest.mark.parametrize("micro_tokens", [40, 1])
def test_the_gradient_of_distillation_does_not_depend_on_the_cut(make_run: Any, other: Path, micro_tokens: int) -> None:
    whole, cut = opened(make_run, other, "float64"), opened(make_run, other, "float64", micro_tokens=micro_tokens)
    made = taught(whole)
    assert distance(gradient(cut, made, Distill()), gradient(whole, made, Distill())) <= 1e-12


def test_the_teacher_stays_while_the_policy_learns_from_it(make_run: Any, other: Path) -> None:
    live = opened(make_run, other)
    made = taught(live)
    losses = [live.update(made, "policy", objective(Distill()), lr_scale=3.0).loss for _ in range(20)]
    assert losses[-1] < losses[0] / 2
    again = live.measure(made, "teacher", frozenset({"hidden"}))["hidden"]
    assert np.array_equal(again, made.measured["teacher_hidden"])
    assert not any(p.requires_grad or p.grad is not None for p in live.teacher.model().module.parameters())


@pytest.mark.parametrize(
    ("policy", "teacher"), [("float32", "float64"), ("float64", "float32"), ("float32", "bfloat16")]
)
def test_the_teacher_has_a_dtype_of_its_own(make_run: Any, tiny: Path, policy: str, teacher: str) -> None:
    run = make_run(policy)
    run.config = dataclasses.replace(run.config, teacher=Teacher(str(tiny), dtype=teacher))
    live = Local().open(run)
    kl_N = live.measure(taught(live), "policy", frozenset({"vocab:kl"}), vocabulary={"kl": forward_kl})["kl"]
    assert 0 < np.abs(kl_N).max() < (1e-2 if teacher == "bfloat16" else 1e-6), "rounding, and it is felt"


# --- vocabularies and templates ---


def test_a_teacher_with_another_vocabulary_is_refused_at_open(make_run: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^teacher\.path=.* has 260 tokens and the policy's, .*, 259"):
        opened(make_run, make_tiny(tmp_path / "more", extra_tokens=1))


def test_a_wrong_path_fails_before_anything_is_played(make_run: Any, tmp_path: Path, tiny: Path) -> None:
    with pytest.raises(ModelError, match=r"^teacher\.path=.*there is no folder"):
        opened(make_run, tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"^teacher\.chat_template=.*no such file"):
        opened(make_run, tiny, teacher={"chat_template": "nowhere.jinja"})


def padded(folder: Path, source: Path, rows: int) -> Path:
    """The model of ``source`` with ``rows`` rows of embeddings and head: those past the tokenizer are padding."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source)
    model.resize_token_embeddings(rows, mean_resizing=False)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def test_padding_of_the_teacher_s_head_is_left_out(make_run: Any, tiny: Path, tmp_path: Path) -> None:
    live = opened(make_run, padded(tmp_path / "wide", tiny, 272))
    found = live.measure(taught(live), "policy", frozenset({"vocab:kl"}), vocabulary={"kl": forward_kl})
    assert np.abs(found["kl"]).max() < 1e-6


def test_a_teacher_s_head_that_is_too_small_is_refused(make_run: Any, tiny: Path, tmp_path: Path) -> None:
    run = make_run(path=str(padded(tmp_path / "wide", tiny, 272)))
    run.config = dataclasses.replace(run.config, teacher=Teacher(str(tiny)))
    live = Local().open(run)
    assert len(live.measure(batch(), "teacher", frozenset({"logp"}))["logp"])
    with pytest.raises(ModelError, match=r"teacher\.path=.* 259 rows and the policy's 272"):
        live.measure(batch(), "teacher", frozenset({"hidden"}))


def test_a_teacher_reads_the_conversation_in_its_own_template(make_run: Any, other: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] ")
    live = opened(make_run, other, teacher={"chat_template": str(file)})
    tokenizer = live.teacher_tokenizer()
    assert tokenizer.digest() != live.tokenizer.digest()
    assert tokenizer.vocabulary_digest() == live.tokenizer.vocabulary_digest()
    groups = [fake_group([1.0, 0.0], [3, 5], row=row, draw=row, tokenizer=live.tokenizer) for row in range(2)]
    made = assemble(groups, seed=0, step=0)
    found_N = BackendTeacher(live).measure(groups, made, frozenset({"logp"}))["logp"]

    from transformers import AutoModelForCausalLM

    model, expected = AutoModelForCausalLM.from_pretrained(other), []
    for attempt in (attempt for group in groups for attempt in group.attempts):
        reply = attempt.experiences[0].tokens_T[attempt.experiences[0].action_T].tolist()
        context = tokenizer.render(attempt.messages[:-1])
        assert tokenizer.decode(context) == f"[user] {attempt.task.messages[0]['content']}\n[assistant] "
        with torch.no_grad():
            logp_TV = model(torch.tensor([context + reply])).logits[0].log_softmax(-1)
        expected += [float(logp_TV[len(context) - 1 + n, token]) for n, token in enumerate(reply)]
    assert np.abs(found_N - np.array(expected)).max() < 2e-5


def test_a_teacher_with_a_window_keeps_it(make_run: Any, tiny: Path, tmp_path: Path) -> None:
    """Whether prefixes may be shared is asked of each model: this teacher would ignore the mask of a shared row."""
    from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=259,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=4,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        MistralForCausalLM(config).save_pretrained(tmp_path / "mistral")
    AutoTokenizer.from_pretrained(tiny).save_pretrained(tmp_path / "mistral")
    live = opened(make_run, tmp_path / "mistral")
    made = batch()
    found_N = live.measure(made, "teacher", frozenset({"logp"}))["logp"]
    exact_NV = by_hand(tmp_path / "mistral", made).numpy()
    token_N = made.tokens_T[made.action_N]
    assert np.abs(found_N - exact_NV[np.arange(len(token_N)), token_N]).max() < 2e-5
    assert live.policy.shares_prefixes and not live.teacher.model().shares_prefixes


def test_without_a_teacher_it_is_refused_by_name(make_run: Any) -> None:
    live = Local().open(make_run())
    assert live.teacher_tokenizer() is live.tokenizer
    with pytest.raises(RunError, match=r"teacher\.path"):
        live.measure(batch(), "teacher", frozenset({"logp"}))
