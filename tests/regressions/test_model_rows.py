"""Teachers, caches, dropout, precision, memory and alarms, of real models and whole runs."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from small_runs import FAKE, events, run, stored

from trinity_core.algo.assemble import advantage_batch, assemble
from trinity_core.builtins.advantages.on_policy_distill import OnPolicyDistill
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.engines.fake import FakeEngine, LiveFakeEngine
from trinity_core.builtins.engines.hf import HF
from trinity_core.config.schema import Critic, Lora, Model, Optim, Teacher
from trinity_core.run.teacher import BackendTeacher
from trinity_core.testing.fakes import FakeRun, bare_config, fake_group
from trinity_core.testing.one_update import PolicyGradient, batch_for, logp, objective, trained_once
from trinity_core.testing.tiny import CHATML, make_tiny
from trinity_core.types import Key, Request, Sampling

LORA = Lora(rank=4, alpha=8.0)
ORDER = "{{ '<|im_start|>system\nBe right.<|im_end|>\n' }}"


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny")


def run_of(folder, dtype="float32", **nodes):
    return FakeRun(config=bare_config(model=Model(str(folder), dtype=dtype, lora=nodes.pop("lora", None)), **nodes))


# --- teachers ---------------------------------------------------------------------------------------------------------


def taught(live, groups):
    """(the student's, the teacher's) log-probabilities of the same actions, and the credit that they make."""
    batch = assemble(groups, seed=0, step=0)
    batch.measured["old_logp"] = live.measure(batch, "policy", frozenset({"logp"}))["logp"]
    batch.measured["teacher_logp"] = BackendTeacher(live).measure(groups, batch, frozenset({"logp"}))["logp"]
    credit = OnPolicyDistill()(advantage_batch(groups, batch, OnPolicyDistill().needs()))
    return batch.measured["old_logp"], batch.measured["teacher_logp"], credit


def conversations(live):
    return [fake_group([1.0, 0.0], [5, 9], draw=n, row=n, tokenizer=live.tokenizer) for n in range(2)]


def test_a_model_that_is_its_own_teacher_has_no_kl(tiny):
    """TOK-15: the same weights under the same template: every token's credit is exactly 0, and so is the first step's metric."""
    live = Local().open(run_of(tiny, teacher=Teacher(str(tiny), dtype="float32")))
    student_N, teacher_N, credit = taught(live, conversations(live))
    assert np.array_equal(student_N, teacher_N)
    assert not credit.advantage.any() and credit.metrics["reverse_kl"] == 0.0


def test_a_teacher_reads_the_conversation_in_its_own_template(tiny, tmp_path):
    """TOK-15: not the student's tokens: what the teacher says is what its model says of the reply behind its own rendering;
    behind the student's it would have been another number for the same weights."""
    (tmp_path / "formal.jinja").write_text(ORDER + CHATML)
    live = Local().open(run_of(tiny, teacher=Teacher(str(tiny), "float32", str(tmp_path / "formal.jinja"))))
    groups = conversations(live)
    student_N, teacher_N, _ = taught(live, groups)
    formal = live.teacher_tokenizer()
    for group in groups:
        for attempt in group.attempts:
            (one,) = attempt.experiences
            action_T = one.action_T
            reply_T = one.tokens_T[action_T]
            context = formal.render(attempt.messages[:-1], generate=True)
            assert "Be right." in formal.decode(context)
            one.tokens_T = np.append(context, reply_T).astype(np.int32)
            one.origin_T = np.append([0] * len(context), one.origin_T[action_T]).astype(np.uint8)
            one.logp_T = np.append([np.nan] * len(context), one.logp_T[action_T]).astype(np.float32)
            for call in one.calls:
                call.start, call.stop = len(context), len(one.tokens_T)
    by_hand_N = live.measure(assemble(groups, seed=0, step=0), "policy", frozenset({"logp"}))["logp"]
    assert np.abs(teacher_N - by_hand_N).max() < 1e-5
    assert np.abs(teacher_N - student_N).mean() > 0.05, (
        "read in the student's template it would teach a difference that is none"
    )


# --- one forward ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_dropout_is_off_for_critic_reference_and_teacher_too(tiny, tmp_path, lora):
    """LPM-12: each of the models beside the policy measures the same twice, and after an update of another."""
    folder = tmp_path / "drops"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.5}))
    nodes = {
        "critic": Critic(lr=1e-2),
        "teacher": Teacher(str(folder), "float32"),
        "optim": Optim(lr=1e-2),
        "lora": lora,
    }
    live = Local().open(run_of(folder, **nodes))
    wanted = {"reference": "logp", "teacher": "logp", "critic": "value"}

    def measured():
        return {
            model: live.measure(batch_for(live), model, frozenset({output}))[output] for model, output in wanted.items()
        }

    first, second = measured(), measured()
    trained_once(live)
    third = measured()
    for model in wanted:
        assert np.array_equal(first[model], second[model]) and np.array_equal(first[model], third[model])
    assert np.array_equal(first["reference"], first["teacher"]), "the same weights"


def test_two_ways_to_compute_agree_to_a_hundredth_in_bfloat16(tiny):
    """PAR-01: the bound of the dtype, relative, on loss and gradient norm; float32 and float64 have theirs."""
    found = []
    for config in (Local(share_prefix=False, micro_tokens=64), Local()):
        live = config.open(run_of(tiny, "bfloat16"))
        result = live.update(batch_for(live), "policy", objective(PolicyGradient()), lr_scale=0.0)
        found.append((result.loss, result.grad_norm))
    assert found[0] == pytest.approx(found[1], rel=1e-2)
    assert found[0][1] > 1e-3


def test_what_a_cache_sampled_is_what_a_plain_forward_says(tiny):
    """LPM-10: shared prompts, rows that end early and a second wave: each log-probability that sampling told from its cache is
    that of one whole forward over the finished text, by the engine and by the trainer, and none is missing."""
    run_ = run_of(tiny, "float32", optim=Optim(lr=0.02))
    backend, engine = Local().open(run_), HF().open(run_)
    prompts = [engine.tokenizer.render([{"role": "user", "content": text}]) for text in ("go on", "go on and on")]

    async def play(version):
        requests = [
            Request(Key("t", n, 0, version), np.array(prompts[n % 2], np.int32), Sampling(max_tokens=3 + 9 * n), n)
            for n in range(8)
        ]
        await engine.load(backend.publish(version, copy=True))
        told = await engine.generate_wave(requests)
        again = [await engine.score(np.append(r.tokens_T, c.tokens_N)) for r, c in zip(requests, told)]
        return [(c.logp_N, s.logp_T[len(r.tokens_T) :]) for r, c, s in zip(requests, told, again)]

    for version in range(2):
        for told_N, scored_N in asyncio.run(play(version)):
            assert np.isfinite(told_N).all() and len(told_N) == len(scored_N)
            assert np.abs(told_N - scored_N).max() < 2e-4
        trained_once(backend)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_model_that_was_saved_or_exported_says_what_it_said(tmp_path, tied, lora):
    """RES-11: one matrix for embedding and head, or two: after training, a checkpoint that is loaded and a folder that is
    exported generate the same replies as the weights that were published, token by token."""
    run_ = run_of(make_tiny(tmp_path / "tiny", tied=tied), optim=Optim(lr=0.02), lora=lora)
    backend = Local().open(run_)
    for seed in range(2):
        trained_once(backend, seed=seed)
    for name in ("saved", "out"):
        (tmp_path / name).mkdir()
    backend.save(tmp_path / "saved")
    backend.export(tmp_path / "out")
    resumed = Local().open(run_)
    resumed.load(tmp_path / "saved")
    exported = Local().open(run_of(tmp_path / "out"))

    def replies(of, at):
        engine = HF().open(at)

        async def play():
            await engine.load(of.publish(0, copy=True))
            prompt_T = np.array(engine.tokenizer.render([{"role": "user", "content": "go on"}]), np.int32)
            asked = [
                Request(Key("t", n, 0, 0), prompt_T, Sampling(temperature=0.0, max_tokens=12), n) for n in range(2)
            ]
            return [answer.tokens_N.tolist() for answer in await engine.generate_wave(asked)]

        return asyncio.run(play())

    said = replies(backend, run_)
    assert said == replies(resumed, run_) == replies(exported, run_of(tmp_path / "out"))
    assert said != replies(Local().open(run_), run_), "training changed what is said"


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("leaks", [False, True])
def test_memory_does_not_grow_with_the_steps(tmp_path, leaks):
    """RUN-05: fifty updates, measured and published: under 1 MB a step once the first ten have warmed up. Whoever keeps what is
    published is seen."""
    import gc

    live = Local().open(run_of(make_tiny(tmp_path / "wide", hidden=192), optim=Optim(lr=1e-3)))
    kept = []

    def held():
        """Bytes of all tensors alive. (Resident memory says nothing in a process that has freed much before.)"""
        return sum(one.nbytes for one in gc.get_objects() if isinstance(one, torch.Tensor))

    seen = []
    for step in range(50):
        trained_once(live, seed=step)
        logp(live)
        kept = [live.publish(step, copy=True), *kept[: 50 if leaks else 0]]
        seen.append(held())
    slope = np.polyfit(np.arange(40), seen[10:], 1)[0]
    assert (slope > 1e6) == leaks


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Off(FakeEngine):
    """An engine that tells less than it sampled with: what another precision or template does, only more of it."""

    nats: float = 1.0
    """How much less, at each token."""

    def open(self, run):
        live = LiveOff(super().open(run).table)
        live.nats = self.nats
        return live


class LiveOff(LiveFakeEngine):
    nats = 0.0

    async def generate_wave(self, requests):
        completions = await super().generate_wave(requests)
        for completion in completions:
            completion.logp_N = completion.logp_N - np.float32(self.nats)
        return completions


def test_a_run_whose_ratios_explode_sounds_both_alarms(tmp_path):
    """LPM-04, LPM-13: 1.5 nats a token off: the ratio of each reply is beyond the mask, nothing is trained, and the run says so:
    of the share that is kept, and of the divergence of sampler and trainer."""
    words = (
        "engine=test_model_rows:Off",
        "engine.nats=1.5",
        "correction=[masked_is_sequence]",
        "tracker=[jsonl,alarms]",
    )
    run(*FAKE, *words, "steps=1", f"out={tmp_path / 'off'}")
    (line,) = events(tmp_path / "off", "step")
    assert line["correction/MaskedISSequence/kept"] == 0.0 and line["loss"] == 0.0
    assert line["kl/sampler_k3"] == pytest.approx(np.exp(1.5) - 2.5, rel=1e-3)  # r − 1 − log r at log r = 1.5
    told = [line["message"] for line in events(tmp_path / "off", "warned")]
    for name, why in (("correction/MaskedISSequence/kept", "most tokens are dropped"), ("kl/sampler_k3", "diverge")):
        assert any(message.startswith(f"alarm: {name} is ") and why in message for message in told)
    run(*FAKE, *words, "engine.nats=0", "steps=1", f"out={tmp_path / 'fine'}")
    (line,) = events(tmp_path / "fine", "step")
    assert line["correction/MaskedISSequence/kept"] == 1.0
    assert not any(
        "kept" in one["message"] or "sampler" in one["message"] for one in events(tmp_path / "fine", "warned")
    )


@pytest.mark.parametrize("stopped", [1, 2, 3, 4])
def test_a_resume_trains_what_is_left_wherever_it_was_stopped_also_between_epochs(stopped, tmp_path):
    """RES-01: eight tasks, four a step, five steps: an epoch ends with steps 2 and 4. After a stop at step k exactly 5 − k steps
    are trained, and every task as often as in a run that was never stopped."""
    words = ("tasksets.digits.size=8", "checkpoint.every=1", f"out={tmp_path / 'run'}")
    run(*FAKE, *words, f"steps={stopped}")
    summary = run(f"resume={tmp_path / 'run'}", "steps=5")
    assert (summary["status"], summary["steps"]) == ("finished", 5)
    assert [line["step"] for line in events(tmp_path / "run", "step")] == [1, 2, 3, 4, 5]
    groups = stored(tmp_path / "run")
    assert [group.draw for group in groups] == list(range(20))
    for epoch in (groups[:8], groups[8:16]):
        assert sorted(group.row for group in epoch) == list(range(8))
