"""The fake engine samples from its table, and nothing but request and weights decides what."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys

import numpy as np
import pytest

from trinity_core.algo.digest import digest_tensors
from trinity_core.builtins.engines.fake import FakeEngine, LiveFakeEngine
from trinity_core.builtins.fake.sampler import truncate
from trinity_core.builtins.fake.table import (
    Table,
    extend_hash,
    initial_table,
    prefix_hashes,
    read_folder,
    state_of,
    write_folder,
)
from trinity_core.builtins.fake.tokenizer import END, VOCABULARY, CharTokenizer
from trinity_core.config.schema import Model
from trinity_core.errors import DataError, DeliveryError, ModelError
from trinity_core.testing.fakes import Digits, FakeRun, bare_config
from trinity_core.testing.play import requests_for, sample_groups
from trinity_core.types import Sampling, Weights


@pytest.fixture
def engine() -> LiveFakeEngine:
    return FakeEngine().open(FakeRun())


def table(seed: int) -> np.ndarray:
    return initial_table(64, "01", 0.5, seed)


def ask(engine: LiveFakeEngine, **sampling):
    return requests_for(engine.tokenizer, [(0, Digits()[0])], 8, sampling=Sampling(**sampling))


# --- tokenizer --------------------------------------------------------------------------------------------------------


def test_printable_text_survives_tokens_exactly():
    tokenizer = CharTokenizer()
    text = "".join(map(chr, range(32, 127))) + "\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text)


def test_text_never_becomes_a_special_token():
    tokenizer = CharTokenizer()
    assert END not in tokenizer.encode("<|end|><|assistant|>")
    assert tokenizer.decode([END, *tokenizer.encode("a"), 3]) == "a"


def test_a_longer_conversation_starts_with_the_tokens_of_a_shorter_one():
    tokenizer = CharTokenizer()
    talk = [{"role": "user", "content": "hi"}]
    prompt = tokenizer.render(talk)
    reply = [*tokenizer.encode("yes"), END]
    longer = [*talk, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "so?"}]
    assert tokenizer.render(longer)[: len(prompt) + len(reply)] == [*prompt, *reply]


def test_an_unknown_role_is_refused_by_name():
    with pytest.raises(DataError, match="judge"):
        CharTokenizer().render([{"role": "judge", "content": "x"}])


# --- states -----------------------------------------------------------------------------------------------------------


def test_a_state_is_a_hash_of_all_tokens_before_it():
    # sequences of 3, 1 and 7 tokens, flat: the closed form must equal the recurrence, token by token
    tokens_T = np.random.default_rng(0).integers(0, 100, 11).astype(np.int32)
    offsets_B1 = np.array([0, 3, 4, 11])
    found_T = prefix_hashes(tokens_T, offsets_B1)
    for start, stop in itertools.pairwise(offsets_B1):
        rolling = np.zeros(1, np.uint64)
        for place in range(start, stop):
            rolling = extend_hash(rolling, tokens_T[place : place + 1])
            assert found_T[place] == rolling[0]


def test_equal_prefixes_share_a_state_and_others_spread():
    one = prefix_hashes(np.array([1, 2, 3, 1, 2, 4], np.int32), np.array([0, 3, 6]))
    assert one[1] == one[4] and one[2] != one[5]
    rng = np.random.default_rng(0)
    hashes = prefix_hashes(rng.integers(0, 100, 4096).astype(np.int32), np.array([0, 4096]))
    # 4096 balls in 4096 bins leave 1/e of them empty: 63.2 % are hit
    assert len(np.unique(state_of(hashes, 4096))) / 4096 == pytest.approx(0.632, abs=0.02)


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_frequencies_are_the_probabilities():
    logits = np.full((1, len(VOCABULARY)), -50.0)
    # .7 for "0", .2 for "1", .1 for the end
    first, second = CharTokenizer().encode("01")
    logits[0, [first, second, END]] = np.log([0.7, 0.2, 0.1])
    live = LiveFakeEngine(Table(logits))
    requests = requests_for(live.tokenizer, [(0, Digits()[0])], 4000, sampling=Sampling(max_tokens=1))
    drawn = np.array([c.tokens_N[0] for c in asyncio.run(live.generate_wave(requests))])
    for token, share in ((first, 0.7), (second, 0.2), (END, 0.1)):
        # three standard errors of 4000 draws at p = .7: .022
        assert (drawn == token).mean() == pytest.approx(share, abs=0.022)


def test_truncation_keeps_the_likeliest_and_renormalises():
    weights = np.array([0.1, 0.4, 0.3, 0.2])
    assert truncate(weights, top_k=2, top_p=1.0).tolist() == [0, 0.4, 0.3, 0]
    # .4 alone does not reach .5; .4 + .3 does
    assert truncate(weights, top_k=0, top_p=0.5).tolist() == [0, 0.4, 0.3, 0]
    assert truncate(weights, top_k=0, top_p=1.0).tolist() == weights.tolist()


def test_a_stop_string_ends_the_reply_with_its_tokens(engine):
    replies = asyncio.run(engine.generate_wave(ask(engine, max_tokens=40, stop=("1", "2", "3"))))
    texts = [engine.tokenizer.decode(c.tokens_N) for c in replies]
    assert any(text.endswith(("1", "2", "3")) for text in texts)
    for text, reply in zip(texts, replies):
        assert not set(text[:-1]) & set("123") and reply.finish == "stop"


def test_a_fresh_policy_ends_half_of_its_replies_at_once(engine):
    groups = sample_groups(engine, Digits(), range(10), 40)
    lengths = [attempt.num_actions for group in groups for attempt in group.attempts]
    # three standard errors of 400 draws at p = .5: .075
    assert np.mean(np.array(lengths) == 1) == pytest.approx(0.5, abs=0.075)


def test_no_tokens_asked_for_is_refused(engine):
    with pytest.raises(DataError, match="max_tokens is 0"):
        asyncio.run(engine.generate_wave(ask(engine, max_tokens=0)))


# --- weights ----------------------------------------------------------------------------------------------------------


def test_a_copy_does_not_follow_the_sender_and_a_shared_table_does(engine):
    logits = table(1)
    asyncio.run(engine.load(Weights(1, "tensors", {"logits": logits})))
    logits += 1
    assert not np.array_equal(engine.table.logits_SV, logits)
    shared = Table(logits)
    receipt = asyncio.run(engine.load(Weights(2, "module", shared)))
    shared.logits_SV -= 3
    assert engine.table is shared and receipt.evidence == "same_object"


def test_the_receipt_digests_what_the_engine_holds(engine):
    logits = table(1)
    receipt = asyncio.run(engine.load(Weights(1, "tensors", {"logits": logits})))
    assert receipt.digest == digest_tensors([("logits", logits)]) == digest_tensors([("l", engine.table.logits_SV)])


def test_a_folder_round_trips_bit_for_bit(tmp_path, engine):
    write_folder(tmp_path, table(1))
    assert read_folder(tmp_path).tobytes() == table(1).tobytes()
    asyncio.run(engine.load(Weights(3, "folder", str(tmp_path))))
    assert engine.version == 3 and engine.table.states == 64
    again = FakeEngine().open(FakeRun(config=bare_config(model=Model(str(tmp_path)))))
    assert np.array_equal(again.table.logits_SV, table(1))


def test_a_folder_that_is_no_table_says_so(tmp_path):
    with pytest.raises(ModelError, match=r"model\.path=fake"):
        read_folder(tmp_path)
    write_folder(tmp_path, table(1))
    (tmp_path / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    "weights", [Weights(1, "adapter", "x"), Weights(1, "module", object()), Weights(1, "tensors", {})]
)
def test_weights_of_another_model_are_refused(engine, weights):
    with pytest.raises(DeliveryError):
        asyncio.run(engine.load(weights))
    assert engine.version == -1


# --- weights in flight ------------------------------------------------------------------------------------------------


def in_flight(how: str):
    """One wave of 8 replies; after their first token, version 1 arrives."""

    async def play():
        live = LiveFakeEngine(Table(table(0)), latency_s=0.02)
        await live.load(Weights(0, "tensors", {"logits": table(0)}))
        wave = asyncio.ensure_future(live.generate_wave(ask(live, max_tokens=6)))
        await asyncio.sleep(0.005)
        await live.load(Weights(1, "tensors", {"logits": table(1)}), in_flight=how)
        return await wave, live.version

    return asyncio.run(play())


def test_finish_lets_replies_end_on_the_old_weights():
    replies, version = in_flight("finish")
    assert version == 1 and all(reply.versions == [(0, 0)] for reply in replies)


def test_continue_stamps_the_token_where_the_weights_changed():
    replies, _ = in_flight("continue")
    longer = [reply for reply in replies if len(reply.tokens_N) > 1]
    assert longer and all(reply.versions == [(0, 0), (1, 1)] for reply in longer)


def test_abort_ends_replies_where_they_stand():
    replies, _ = in_flight("abort")
    assert any(reply.finish == "aborted" for reply in replies)
    assert all(len(reply.tokens_N) == 1 for reply in replies)


# --- weight -----------------------------------------------------------------------------------------------------------


def test_a_process_that_only_plays_never_loads_torch():
    code = (
        "import asyncio, sys; from trinity_core.builtins.engines.fake import FakeEngine;"
        "from trinity_core.testing.fakes import FakeRun, Digits; from trinity_core.testing.play import sample_groups;"
        "sample_groups(FakeEngine().open(FakeRun()), Digits(), [1], 2);"
        "print([m for m in ('torch', 'transformers', 'hydra') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
