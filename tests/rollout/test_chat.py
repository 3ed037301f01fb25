"""What a workflow holds."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from trinity_core.errors import DataError
from trinity_core.rollout.chat import AttemptEnded, Chat, TooManyCalls
from trinity_core.rollout.renderer import Renderer
from trinity_core.testing.scripted import Scripted
from trinity_core.types import Key, Sampling

ASK = [{"role": "user", "content": "hi"}]


def chat_on(engine: Scripted, *, response: int = 8, **options: Any) -> Chat:
    options = {"max_attempt_tokens": 100} | options
    return Chat(
        Key("d", 0, 0, 0), engine.generate, Renderer(engine.tokenizer), Sampling(max_tokens=response), **options
    )


def play(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def test_a_conversation_that_goes_on_grows_one_experience_of_the_sampled_ids():
    async def attempt():
        engine = Scripted(lambda r: f"a{r.key.call}")
        chat = chat_on(engine)
        first = await chat(ASK)
        second = await chat([*ASK, first.message, {"role": "user", "content": "and"}])
        return chat, engine.tokenizer, first, second

    chat, tokenizer, first, second = play(attempt())
    (one,) = chat.recorder.experiences()
    shown = tokenizer.decode(one.tokens_T.tolist(), skip_special=False)
    assert shown == "<|user|>hi<|end|><|assistant|>a0<|end|><|user|>and<|end|><|assistant|>a1<|end|>"
    assert one.tokens_T[one.action_T].tolist() == [*first.tokens, *second.tokens]
    assert [m["content"] for m in chat.messages] == ["hi", "a0", "and", "a1"]
    assert chat.text == "a1"


def test_a_reply_that_was_cut_gets_the_templates_end_as_context():
    async def attempt():
        engine = Scripted(lambda r: "abcdef")
        chat = chat_on(engine, response=3)
        first = await chat(ASK)
        await chat([*ASK, first.message, {"role": "user", "content": "on"}])
        return chat, engine.tokenizer, first

    chat, tokenizer, first = play(attempt())
    assert (first.text, first.finish) == ("abc", "length")
    (one,) = chat.recorder.experiences()
    assert "abc<|end|><|user|>on" in tokenizer.decode(one.tokens_T.tolist(), skip_special=False)
    assert tokenizer.decode(one.tokens_T[one.action_T].tolist(), skip_special=False) == "abcabc"


def test_changed_history_branches():
    async def attempt():
        chat = chat_on(Scripted(lambda r: "ab"))
        await chat(ASK)
        await chat([*ASK, {"role": "assistant", "content": "edited"}, {"role": "user", "content": "and"}])
        return chat

    chat = play(attempt())
    assert chat.recorder.num_branches == 1
    assert len(chat.recorder.experiences()) == 2


def test_a_call_gets_only_what_is_left_of_the_attempt_then_nothing_then_the_end():
    async def attempt():
        chat = chat_on(Scripted(lambda r: "0123456789"), response=8, max_attempt_tokens=11)
        sizes = [len((await chat(ASK)).tokens), len((await chat(ASK)).tokens)]
        empty = await chat(ASK)
        with pytest.raises(AttemptEnded):
            await chat(ASK)
        return sizes, empty, chat

    sizes, empty, chat = play(attempt())
    assert sizes == [8, 3]
    assert (empty.text, empty.finish, len(empty.tokens)) == ("", "length", 0)
    assert chat.recorder.num_sampled == 11


def test_one_call_too_many_faults_the_attempt():
    async def attempt():
        chat = chat_on(Scripted(), max_calls=2)
        await chat(ASK)
        await chat(ASK)
        with pytest.raises(TooManyCalls, match=r"explorer\.max_calls=2"):
            await chat(ASK)

    play(attempt())


def test_a_state_belongs_to_the_next_call_and_a_reward_to_the_last():
    async def attempt():
        chat = chat_on(Scripted())
        with pytest.raises(DataError, match="there was none yet"):
            chat.mark(reward=1.0)
        chat.mark(state="s0")
        await chat(ASK)
        chat.mark(reward=0.5, state="s1")
        await chat(ASK)
        await chat(ASK)
        with pytest.raises(DataError, match="finite"):
            chat.mark(reward=float("nan"))
        return [(c.state, c.reward) for c in chat.recorder.calls]

    assert play(attempt()) == [("s0", 0.5), ("s1", None), (None, None)]


def test_sampling_can_be_replaced_by_field_but_not_the_attempts_limit():
    async def attempt():
        chat = chat_on(Scripted(lambda r: "0123456789"), max_attempt_tokens=4)
        await chat(ASK, sampling={"temperature": 0.0, "max_tokens": 50})
        return chat.recorder.calls[0]

    call = play(attempt())
    assert (call.sampling.temperature, call.sampling.max_tokens, call.stop - call.start) == (0.0, 4, 4)


def test_raw_tokens_are_completed_without_the_template():
    async def attempt():
        engine = Scripted(lambda r: "x")
        chat = chat_on(engine)
        first = await chat.complete([5, 6])
        await chat.complete([5, 6, *first.tokens, 7])
        return chat

    (one,) = play(attempt()).recorder.experiences()
    assert one.tokens_T[:2].tolist() == [5, 6] and len(one.calls) == 2


def test_the_attempts_own_noise_is_the_same_in_every_run_and_differs_between_attempts():
    def numbers(key: Key) -> list[float]:
        engine = Scripted()
        return Chat(key, engine.generate, Renderer(engine.tokenizer), Sampling(), 8).rng.random(3).tolist()

    assert numbers(Key("d", 0, 0, 0)) == numbers(Key("d", 0, 0, 0)) != numbers(Key("d", 0, 0, 1))


def test_an_engine_that_returns_more_than_it_was_asked_for_is_refused():
    class Long(Scripted):
        async def generate(self, request):
            completion = await super().generate(request)
            tokens = np.zeros(request.sampling.max_tokens + 1, np.int32)
            return type(completion)(tokens, np.zeros(len(tokens), np.float32), "stop", [(0, 0)])

    with pytest.raises(DataError, match="9 tokens where 8"):
        play(chat_on(Long())(ASK))
