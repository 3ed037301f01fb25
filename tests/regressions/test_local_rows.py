"""The backend ``local`` and the engine ``hf``: adapters, packing, memory, delivery, parity."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import events, run
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trinity_core.algo.assemble import assemble
from trinity_core.algo.objective import Objective
from trinity_core.algo.reduce import set_weights
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.buffers.sql import SQLBuffer
from trinity_core.builtins.engines.hf import HF
from trinity_core.builtins.models.causal import CausalLM
from trinity_core.builtins.models.head import CHUNK, head_outputs
from trinity_core.builtins.models.packing import pack
from trinity_core.config.schema import Lora, Model, Optim
from trinity_core.errors import CheckpointError, ConfigError, RunError
from trinity_core.testing.fakes import FakeRun, bare_config, fake_group
from trinity_core.testing.one_update import PolicyGradient, batch_for, logp, objective, trained_once
from trinity_core.testing.tiny import CHATML, make_tiny
from trinity_core.types import Key, Request, Sampling, Weights

LORA = Lora(rank=4, alpha=8.0)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny")


def opened(folder, config=None, *, dtype="float64", lora=None, lr=1e-2):
    nodes = bare_config(model=Model(str(folder), dtype=dtype, lora=lora), optim=Optim(lr=lr))
    return (config or Local()).open(FakeRun(config=nodes))


# --- adapters ---------------------------------------------------------------------------------------------------------


def test_an_export_is_the_base_plus_what_the_adapters_say(tiny, tmp_path):
    """RES-08: a merged folder that equals its base learned nothing: each matrix is W + alpha/rank · B A, none is W."""
    live = opened(tiny, lora=LORA, dtype="float32")
    for seed in (1, 2):
        trained_once(live, seed=seed)
    (tmp_path / "saved").mkdir()
    live.save(tmp_path / "saved")
    live.export(tmp_path / "merged")
    adapters = load_file(tmp_path / "saved" / "weights.safetensors")
    base, merged = (load_file(folder / "model.safetensors") for folder in (tiny, tmp_path / "merged"))
    assert set(base) == set(merged)
    touched = 0
    for name, plain in base.items():
        stem = name.removesuffix(".weight")
        if f"{stem}.lora_A.default.weight" not in adapters:
            assert torch.equal(merged[name], plain)
            continue
        product = adapters[f"{stem}.lora_B.default.weight"] @ adapters[f"{stem}.lora_A.default.weight"]
        assert torch.allclose(merged[name], plain + 8.0 / 4 * product, atol=1e-6)
        assert not torch.equal(merged[name], plain)
        touched += 1
    assert touched == 14, "seven matrices in each of two layers"
    hashes = {
        hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        for folder in (tiny, tmp_path / "merged")
    }
    assert len(hashes) == 2


@pytest.fixture(scope="module")
def words(tiny, tmp_path_factory):
    """A run of adapters on the tiny model, with a chat template of its own."""
    torch.set_num_threads(1)
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(CHATML)
    return (
        f"model.path={tiny}", f"model.chat_template={template}", "model.dtype=float32",
        "model.lora={rank: 4, alpha: 64}", "threads=1", "optim.lr=0.01", "groups_per_step=2", "algorithm.group_size=4",
        "sampling.max_response=6", "taskset=[]", "+taskset@tasksets.digits=trinity_core.testing.fakes:Digits",
        "reward=[]", "+reward@rewards.shape=run_parts:Shape", "tracker=[jsonl]",
    )  # fmt: skip


@pytest.fixture(scope="module")
def adapted(words, tmp_path_factory):
    """(folder, summary) of two such steps."""
    folder = tmp_path_factory.mktemp("adapted") / "run"
    return folder, run(*words, "steps=2", f"out={folder}")


def test_alpha_is_saved_as_it_was_given(adapted, tmp_path):
    """RES-09: it comes back from the saved config, scales the adapters, and cannot change on the way."""
    import yaml

    folder = tmp_path / "run"
    shutil.copytree(adapted[0], folder)
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"]["lora"]["alpha"] == 64
    with pytest.raises(ConfigError, match=r"model\.lora\.alpha was 64.* and is now 1"):
        run(f"resume={folder}", "steps=3", "model.lora.alpha=1")
    assert run(f"resume={folder}", "steps=3")["steps"] == 3


def test_adapters_are_other_weights_after_the_first_step(adapted, words, tiny):
    """RES-13: what was trained differs from what it started from, step by step, or the run ends."""
    folder, summary = adapted
    start = opened(tiny, lora=Lora(rank=4, alpha=64), dtype="float32").digest()
    assert summary["weights_sha256"] != start
    assert all(line["weights/moved"] > 0 and line["grad_norm"] > 0 for line in events(folder, "step"))


def test_training_that_moves_no_weight_ends(words, tmp_path):
    """RES-13: a gradient, a learning rate, and not one changed adapter: an error, not a log line."""
    with pytest.raises(RunError, match=r"step 1: the gradient norm is .* not one stored weight changed"):
        run(*words, "optim.lr=1e-60", "steps=2", f"out={tmp_path / 'run'}")


def test_what_is_trained_is_counted_and_named_in_the_plan(tiny):
    """WGT-06: number and hash of the trained parameters: another selection shows, whatever the config seems to say."""
    told = [
        opened(tiny, lora=dataclasses.replace(LORA, targets=targets)).describe()
        for targets in ("all-linear", ("q_proj",))
    ]
    whole = opened(tiny).describe()
    assert whole["trained"] == whole["parameters"] > told[0]["trained"] > told[1]["trained"] > 0
    assert len({entry["trained_names"] for entry in (*told, whole)}) == 3
    assert told[1]["trained"] == 2 * 2 * 4 * 32, "two layers, A and B, rank 4, width 32"


# --- templates --------------------------------------------------------------------------------------------------------


def test_a_chat_template_that_changed_behind_a_run_is_refused(adapted, words, tmp_path):
    """TOK-21: its hash is in the checkpoint: the same words would be other tokens than the policy was trained on."""
    folder = tmp_path / "run"
    shutil.copytree(adapted[0], folder)
    template = next(word.partition("=")[2] for word in words if word.startswith("model.chat_template="))
    with open(template, "w") as file:
        file.write("{{ 'Be brief.' }}" + CHATML)
    try:
        with pytest.raises(
            CheckpointError, match=r"trained with tokenizer and chat template [0-9a-f]{12}, this run has [0-9a-f]{12}"
        ):
            run(f"resume={folder}", "steps=3")
    finally:
        with open(template, "w") as file:
            file.write(CHATML)
    assert run(f"resume={folder}", "steps=3")["steps"] == 3


# --- one number, however it is computed -------------------------------------------------------------------------------


def test_the_first_step_is_exactly_on_policy(adapted):
    """PAR-03: old log-probabilities come from the training forward itself: a ratio of 1 and a KL of 0, not of 1e-9."""
    for line in events(adapted[0], "step"):
        assert line["kl/old"] == 0.0 and line["ratio/min"] == line["ratio/max"] == 1.0


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_dropout_is_off_in_every_pass(tiny, tmp_path, lora):
    """LPM-12: a model whose config asks for dropout measures the same twice, and the same as its update's forward."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "drops"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.5}))
    live = opened(folder, Local(gradient_checkpointing=True), lora=lora, dtype="float32")
    assert np.array_equal(logp(live), logp(live))
    batch = batch_for(live)
    batch.measured["old_logp"] = live.measure(batch, "policy", frozenset({"logp"}))["logp"]
    result = live.update(batch, "policy", Objective.of(PolicyGradient(), old="measured"), lr_scale=1.0)
    assert result.stats["metric/off"] < 1e-6
    plain = AutoModelForCausalLM.from_pretrained(folder).train()
    ids = torch.arange(3, 60)[None]
    assert not torch.equal(plain(ids).logits, plain(ids).logits), "in training mode this model does drop"


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("float64", 1e-11)])
def test_two_ways_to_compute_agree_on_the_same_rows_of_a_buffer(tiny, tmp_path, dtype, limit):
    """PAR-02, PAR-01: rows that were written once are read by both; loss, gradient norm and the weights after a step
    agree to the dtype's own rounding."""
    plain = opened(tiny, Local(share_prefix=False, micro_tokens=64), dtype=dtype)
    shared = opened(tiny, Local(), dtype=dtype)
    ledger = SQLBuffer().open(FakeRun(dir=tmp_path))
    ledger.begin(None, ordered=True)
    for opening in ledger.enter("x", 3, 3, version=0, ttl_s=60):
        lengths = [3 + opening.draw, 9, 1 + opening.draw, 5]
        group = fake_group(
            [1.0, 0.0, 0.5, 0.25], lengths, draw=opening.draw, row=opening.draw, tokenizer=plain.tokenizer
        )
        ledger.put(group, place=opening.place)
    found = {}
    for name, live in (("plain", plain), ("shared", shared)):
        batch = assemble(ledger.read([entry.id for entry in ledger.index()]), seed=0, step=1)
        batch.advantage_N = (batch.reward_B - 0.4)[batch.row_N]
        set_weights(batch, "token_mean")
        result = live.update(batch, "policy", objective(PolicyGradient()), lr_scale=1.0)
        found[name] = (result.loss, result.grad_norm, live.measure(batch, "policy", frozenset({"logp"}))["logp"])
    ledger.close()
    for one, other in zip(found["plain"], found["shared"]):
        assert np.abs(np.asarray(one) - np.asarray(other)).max() <= limit * max(1.0, np.abs(np.asarray(one)).max())
    assert found["plain"][1] > 1e-3, "there was a gradient to agree on"


def test_neighbours_in_a_packed_row_see_nothing_of_each_other(tiny):
    """RUN-10: a sequence beside others is the sequence alone, and stays it whatever the others say."""
    live = opened(tiny)
    groups = [
        fake_group([1.0, 0.0], lengths, draw=draw, row=draw, tokenizer=live.tokenizer)
        for draw, lengths in enumerate(([60, 50], [3, 2], [2, 4]))
    ]
    batch = assemble(groups, seed=0, step=0)
    assert len(pack(batch).blocks) < len(batch), "some are neighbours in one block"

    def measured(made):
        return live.measure(made, "policy", frozenset({"logp"}))["logp"]

    together_N = measured(batch)
    for row in range(len(batch)):
        alone_N = measured(batch.select(np.array([row])))
        assert np.abs(together_N[batch.row_N == row] - alone_N).max() < 1e-12
    loud = dataclasses.replace(batch, tokens_T=batch.tokens_T.copy())
    for row in np.flatnonzero(batch.group_B != 1):
        own = slice(batch.offsets_B1[row], batch.offsets_B1[row + 1])
        loud.tokens_T[own] = 3 + (batch.tokens_T[own] + 11) % 250
    second_N = batch.group_B[batch.row_N] == 1
    changed_N = measured(loud)
    assert np.abs(changed_N - together_N)[second_N].max() < 1e-12
    assert np.abs(changed_N - together_N)[~second_N].min() > 1e-9


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that is made, forward and backward."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor))])
        return out


def test_the_whole_vocabulary_never_exists_for_all_tokens_at_once(tmp_path):
    """RUN-06: with a gradient or without, logits live a chunk at a time: the default, not an option."""
    folder = make_tiny(tmp_path / "wide", extra_tokens=741)
    model = CausalLM.load(folder, Model(str(folder), dtype="float32"), device="cpu")
    tokens, vocab = 4 * CHUNK, 1000
    token_N = torch.arange(tokens) % vocab

    def largest(**options):
        hidden_NH = torch.randn(tokens, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
        with Largest() as seen:
            found = head_outputs(
                model, hidden_NH, token_N, torch.ones(tokens), frozenset({"logp", "entropy"}), **options
            )
            (found["logp"].sum() + found["entropy"].sum()).backward()
        return seen.numel, hidden_NH.grad

    chunked, gradient = largest()
    assert chunked == CHUNK * vocab
    whole, expected = largest(chunk=tokens)
    assert whole == tokens * vocab, "the measure sees what it is there to see"
    assert torch.allclose(gradient, expected, atol=1e-5)


# --- control while a model plays --------------------------------------------------------------------------------------


def requests(engine, number, tokens):
    prompt_T = np.array(engine.tokenizer.render([{"role": "user", "content": "go on"}]), np.int32)
    return [
        Request(Key("t", n, 0, 0), prompt_T, Sampling(temperature=5.0, max_tokens=tokens), n) for n in range(number)
    ]


def test_new_weights_do_not_wait_for_what_is_queued(tiny):
    """RUN-01: a delivery that aborts reaches the engine past every generation that was asked for before it."""

    async def play():
        engine = HF().open(FakeRun(config=bare_config(model=Model(str(tiny), dtype="float32"))))
        await engine.load(Weights(0, "folder", str(tiny)))
        playing = [asyncio.create_task(engine.generate(one)) for one in requests(engine, 24, 400)]
        await asyncio.sleep(0.05)
        receipt = await engine.load(Weights(1, "folder", str(tiny)), in_flight="abort")
        done = await asyncio.gather(*playing)
        engine.close()
        return receipt, done

    receipt, done = asyncio.run(play())
    assert receipt.version == 1
    assert [answer.finish for answer in done].count("aborted") >= 20
    assert sum(len(answer.tokens_N) for answer in done) < 24 * 400 / 4


def test_weights_in_use_are_not_taken_away(tiny):
    """WGT-04: a delivery waits for the wave that samples from the weights before it: no reply mixes the two."""

    async def play():
        engine = HF().open(FakeRun(config=bare_config(model=Model(str(tiny), dtype="float32"))))
        await engine.load(Weights(0, "folder", str(tiny)))
        wave = asyncio.create_task(engine.generate_wave(requests(engine, 4, 40)))
        await asyncio.sleep(0)
        await engine.load(Weights(1, "folder", str(tiny)))
        async with asyncio.timeout(1):  # it has been played: its answers only have to be handed over
            await wave
        after = await engine.generate_wave(requests(engine, 4, 40))
        engine.close()
        return wave.result(), after

    before, after = asyncio.run(play())
    assert {tuple(answer.versions) for answer in before} == {((0, 0),)}
    assert {tuple(answer.versions) for answer in after} == {((1, 0),)}
    assert [a.tokens_N.tolist() for a in before] == [a.tokens_N.tolist() for a in after], (
        "the same weights under two numbers"
    )
