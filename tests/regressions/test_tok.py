"""Tokens: what is trained is what was sampled, whatever the template does."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from templates import ASSISTANT, END, SYSTEM, USER, Begins, DropsThoughts, Newline, NoTemplate

from trinity_core.builtins.environments.guess import Guess
from trinity_core.builtins.tasksets.guess import GuessTasks
from trinity_core.builtins.workflows.multi_turn import MultiTurn
from trinity_core.errors import DataError, ModelError
from trinity_core.rollout.chat import Chat
from trinity_core.rollout.renderer import Renderer
from trinity_core.testing.scripted import Scripted, run_of, scheduler_of
from trinity_core.types import Experience, Key, Origin, Sampling

USER_1 = {"role": "user", "content": "one"}
USER_2 = {"role": "user", "content": "two"}


def talk(tokenizer, replies, *, turns=(USER_1, USER_2), response=40):
    """The experiences, the replies and the prompts of one conversation."""

    async def attempt():
        engine = Scripted(lambda request: replies[request.key.call])
        engine.tokenizer = tokenizer
        prompts = []

        async def submit(request):
            prompts.append(request.tokens_T.tolist())
            return await engine.generate(request)

        chat = Chat(Key("d", 0, 0, 0), submit, Renderer(tokenizer), Sampling(max_tokens=response), 400)
        messages, said = [], []
        for turn in turns:
            messages.append(turn)
            said.append(await chat(messages))
            messages.append(said[-1].message)
        return chat.recorder, said, prompts

    return asyncio.run(attempt())


def test_what_the_template_puts_behind_a_turn_is_not_lost():
    """TOK-01: the ids of a conversation played turn by turn are those of the whole conversation rendered at once."""
    tokenizer = Newline()
    recorder, _, prompts = talk(tokenizer, ["a", "b"])
    assert prompts[1] == tokenizer.render([USER_1, {"role": "assistant", "content": "a"}, USER_2])
    (one,) = recorder.experiences()
    newline = tokenizer.encode("\n")[0]
    at = one.calls[0].stop
    assert one.tokens_T[at - 1 : at + 2].tolist() == [END, newline, USER]
    assert one.origin_T[at] == Origin.CONTEXT


def test_a_template_that_drops_earlier_thoughts_branches_and_the_start_up_check_says_so():
    """TOK-02: the prefix property is checked at start; where it fails a turn begins an experience of its own, and no
    token is trained twice or under a context it was not sampled in."""

    replies = ["<think>hm</think>a", "<think>ah</think>b"]
    recorder, said, prompts = talk(DropsThoughts(), replies)
    first, second = recorder.experiences()
    assert recorder.num_branches == 1 and second.parent == 0
    for experience, reply, prompt in zip((first, second), said, prompts):
        assert experience.tokens_T[: len(prompt)].tolist() == prompt
        assert experience.tokens_T[experience.action_T].tolist() == reply.tokens.tolist()

    assert Renderer(Newline()).keeps_prefix()
    assert not Renderer(DropsThoughts()).keeps_prefix()


def test_the_assistants_turn_is_opened_in_every_turn():
    """TOK-04: each prompt ends with the assistant's header, also from the second turn on."""
    _, _, prompts = talk(Newline(), ["a", "b", "c"], turns=(USER_1, USER_2, USER_1))
    assert [prompt[-1] for prompt in prompts] == [ASSISTANT] * 3


def test_each_tool_message_is_a_turn_of_its_own():
    """TOK-05: consecutive tool messages are rendered as the template renders them."""
    tools = [{"role": "tool", "content": "4"}, {"role": "tool", "content": "5"}]
    tokenizer = Newline()

    async def attempt():
        engine = Scripted(lambda request: "ok")
        engine.tokenizer = tokenizer
        chat = Chat(Key("d", 0, 0, 0), engine.generate, Renderer(tokenizer), Sampling(max_tokens=8), 99)
        first = await chat([USER_1])
        await chat([USER_1, first.message, *tools])
        return chat.recorder.experiences()

    (one,) = asyncio.run(attempt())
    said = [{"role": "assistant", "content": "ok"}]
    assert one.tokens_T[: one.calls[1].start].tolist() == tokenizer.render([USER_1, *said, *tools])


def test_only_sampled_ids_are_actions_however_many_turns():
    """TOK-06: what the world says is context in every turn, by construction."""

    async def play():
        engine = Scripted(lambda request: "7")
        run = run_of(group_size=2)
        scheduler = scheduler_of(
            run, MultiTurn(max_turns=5), engine, environment=Guess(), tasksets={"d": GuessTasks(low=4, high=4)}
        )
        (one,) = await scheduler.play_all([(0, "d", 0)], max_attempt_tokens=100)
        scheduler.scorer.close()
        return one.group.attempts, engine.tokenizer

    attempts, tokenizer = asyncio.run(play())
    for attempt in attempts:
        (one,) = attempt.experiences
        assert tokenizer.decode(one.tokens_T[one.action_T].tolist(), skip_special=False) == "7<|end|>" * 5
        assert "lower" in tokenizer.decode(one.tokens_T[one.origin_T == Origin.CONTEXT].tolist())
        assert np.isfinite(one.logp_T[one.action_T]).all()
        assert np.isnan(np.delete(one.logp_T, one.action_T)).all()


@pytest.mark.parametrize("name", ["origin_T", "logp_T", "token_reward_T"])
def test_arrays_of_another_length_than_the_tokens_are_refused(name):
    """TOK-08: every array of an experience has one entry for each token."""
    arrays = {
        "origin_T": np.zeros(3, np.uint8),
        "logp_T": np.zeros(3, np.float32),
        "token_reward_T": np.zeros(3, np.float32),
    }
    arrays[name] = arrays[name][:2]
    with pytest.raises(DataError, match=f"Experience.{name}: 2 entries for 3 tokens"):
        Experience(np.zeros(3, np.int32), **arrays)


def test_completions_belong_to_requests_and_not_to_positions():
    """TOK-09: attempts with one prompt, that call in different orders and numbers, each get their own answers."""
    from trinity_core.protocols import Workflow
    from trinity_core.types import Result

    class Uneven(Workflow):
        async def run(self, task, chat):
            for n in range(1 + chat.key.attempt):
                reply = await chat([{"role": "user", "content": "same for all"}])
                assert reply.text == f"{chat.key.attempt}.{n}"
            return Result(reward=1.0)

    async def play():
        engine = Scripted(lambda request: f"{request.key.attempt}.{request.key.call}")
        scheduler = scheduler_of(run_of(wave=3, retries=0), Uneven(), engine)
        (one,) = await scheduler.play_all([(0, "d", 0)], max_attempt_tokens=100)
        scheduler.scorer.close()
        return one

    assert asyncio.run(play()).reason is None


def test_a_conversation_that_does_not_accumulate_is_trained_and_counted():
    """TOK-10: a history that was edited gives branches whose replies are actions; nothing is masked away in silence."""

    async def attempt():
        engine = Scripted(lambda request: "ok")
        chat = Chat(Key("d", 0, 0, 0), engine.generate, Renderer(engine.tokenizer), Sampling(max_tokens=8), 99)
        for n in range(3):
            await chat([{"role": "user", "content": f"summary {n}"}, USER_1])
        return chat.recorder

    recorder = asyncio.run(attempt())
    assert recorder.num_branches == 2
    assert [len(e.action_T) for e in recorder.experiences()] == [3, 3, 3]


def test_a_begin_token_comes_once_and_first_however_many_turns():
    """TOK-16, TOK-17: the template's begin-of-text token is neither doubled at a bridge nor lost."""
    recorder, _, prompts = talk(Begins(), ["a", "b", "c"], turns=(USER_1, USER_2, USER_1))
    (one,) = recorder.experiences()
    assert one.tokens_T.tolist().count(SYSTEM) == 1 and one.tokens_T[0] == SYSTEM
    assert all(prompt[0] == SYSTEM for prompt in prompts)


def test_the_end_that_was_sampled_is_an_action_also_where_it_is_the_padding_token():
    """TOK-18: what is trained follows from where a token came from, never from its id."""
    recorder, _, _ = talk(Newline(), ["a", "b"])
    (one,) = recorder.experiences()
    ends = np.flatnonzero(one.tokens_T == END)
    assert [int(one.origin_T[at]) for at in ends] == [Origin.CONTEXT, Origin.SAMPLED, Origin.CONTEXT, Origin.SAMPLED]


def test_a_reply_that_was_cut_has_no_end_of_its_own():
    """TOK-19, TOK-20: nothing is forced onto a cut reply; its last token is the one sampled, and the attempt says it."""
    recorder, (reply,), _ = talk(Newline(), ["abcdef"], turns=(USER_1,), response=3)
    (one,) = recorder.experiences()
    assert reply.finish == "length" and one.calls[0].finish == "length"
    assert one.tokens_T[one.action_T].tolist() == Newline().encode("abc")
    assert len(one.tokens_T) == one.calls[0].stop


def test_a_template_without_generation_marks_is_enough():
    """TOK-23: which tokens are the assistant's is known from sampling; the template is not asked."""
    recorder, said, _ = talk(Newline(), ["a", "b"])
    assert sum(len(e.action_T) for e in recorder.experiences()) == sum(len(reply.tokens) for reply in said)


def test_a_tokenizer_without_a_chat_template_is_one_message_with_the_fix():
    """TOK-23: what a template cannot do is said at the start, with the way on."""
    with pytest.raises(
        ModelError, match=r"model\.chat_template: the tokenizer has no chat template\. Choose an instruct model"
    ):
        Renderer(NoTemplate()).keeps_prefix()


def test_a_template_that_refuses_a_role_names_the_roles():
    """TOK-23: a template that cannot render a conversation says which roles it was given."""
    with pytest.raises(ModelError, match="a conversation with the roles user, narrator"):
        Renderer(Newline()).render([USER_1, {"role": "narrator", "content": "then"}])


def test_a_conversation_played_turn_by_turn_has_the_ids_of_the_hugging_face_template(tmp_path):
    """TOK-14: prompts are the template's own, also behind a bridge; what is between them was sampled."""
    pytest.importorskip("transformers")
    from trinity_core.rollout.tokenizer import HFTokenizer
    from trinity_core.testing.tiny import make_tiny

    make_tiny(tmp_path / "tiny")
    tokenizer = HFTokenizer(tmp_path / "tiny")
    assert Renderer(tokenizer).keeps_prefix()

    class Ends(Scripted):
        async def generate(self, request):
            completion = await super().generate(request)
            completion.tokens_N[-1] = min(tokenizer.eos_ids)
            return completion

    async def attempt():
        engine = Ends(lambda request: ["a b", "c"][request.key.call])
        engine.tokenizer = tokenizer
        chat = Chat(Key("d", 0, 0, 0), engine.generate, Renderer(tokenizer), Sampling(max_tokens=40), 400)
        first = await chat([USER_1])
        await chat([USER_1, first.message, USER_2])
        return chat.recorder.experiences(), first

    (one,), first = asyncio.run(attempt())
    whole = tokenizer.hf.apply_chat_template(
        [USER_1, first.message, USER_2], add_generation_prompt=True, return_dict=False
    )
    assert one.tokens_T[: one.calls[1].start].tolist() == list(whole)
