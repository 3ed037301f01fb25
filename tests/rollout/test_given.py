"""Data that was not sampled, in the tokens that the policy would have sampled."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.regressions.templates import ASSISTANT, END, USER, Begins, DropsThoughts, Newline, NoTemplate
from trinity_core.builtins.fake.tokenizer import CharTokenizer
from trinity_core.codec import pack, unpack
from trinity_core.errors import DataError, ModelError
from trinity_core.rollout.chat import Chat
from trinity_core.rollout.given import record
from trinity_core.rollout.renderer import Renderer
from trinity_core.testing.scripted import Scripted
from trinity_core.types import Group, Key, Origin, Sampling, Task

ASK = {"role": "user", "content": "hi"}
C, T, H = int(Origin.CONTEXT), int(Origin.TARGET), int(Origin.HISTORY)


def said(text: str, **more) -> dict:
    return {"role": "assistant", "content": text, **more}


def recorded(given, messages=(ASK,), tokenizer=None, **data) -> Group:
    group = Group("run/g", Task("t", tuple(messages), None, data, given), [])
    record(group, Renderer(tokenizer or CharTokenizer()))
    return group


def encode(text: str) -> list[int]:
    return CharTokenizer().encode(text)


def test_an_answer_stands_behind_the_prompt_and_ends_with_the_end_of_the_turn():
    (attempt,) = recorded({"expert": [said("no")]}).attempts
    (one,) = attempt.experiences
    # <|user|> h i <|end|> <|assistant|> | n o <|end|>
    assert one.tokens_T.tolist() == [USER, *encode("hi"), END, ASSISTANT, *encode("no"), END]
    assert one.origin_T.tolist() == [C, C, C, C, C, T, T, T]
    assert one.action_T.tolist() == [5, 6, 7]
    assert np.isnan(one.logp_T).all() and one.calls == [] and one.version is None
    assert (attempt.role, attempt.text, attempt.score, attempt.index) == ("expert", "no", None, 0)
    assert attempt.messages == [ASK, said("no")]


def test_a_pair_is_a_pair_whatever_else_the_task_gives():
    experts = [[said("a")], [said("b")]]
    group = recorded({"rejected": [said("bad")], "chosen": [said("good")], "expert": experts})
    assert [(a.role, a.text, a.index) for a in group.attempts] == [
        ("expert", "a", 0),
        ("expert", "b", 1),
        ("chosen", "good", 2),
        ("rejected", "bad", 3),
    ]
    assert group.pairs == [(2, 3)]
    assert group.version is None


TALK = [
    said("<think>x</think>1"),
    {"role": "user", "content": "and?"},
    said("2"),
    {"role": "tool", "content": "t"},
    said("3"),
]


@pytest.mark.parametrize(
    "tokenizer", [CharTokenizer(), Newline(), Begins(), DropsThoughts()], ids=lambda t: type(t).__name__
)
def test_what_is_given_has_the_tokens_of_a_policy_that_says_the_same(tokenizer):
    """Turn by turn, as it is sampled: also where the template drops earlier thoughts, so that a turn begins anew."""
    replies = iter([message["content"] for message in TALK if message["role"] == "assistant"])
    engine = Scripted(lambda request: next(replies))
    chat = Chat(Key("d", 0, 0, 0), engine.generate, Renderer(tokenizer), Sampling(max_tokens=40), 400)

    async def play() -> None:
        messages = [ASK]
        for message in TALK:
            if message["role"] == "assistant":
                assert (await chat(messages)).text == message["content"]
            messages.append(message)

    asyncio.run(play())
    sampled = chat.recorder.experiences()
    given = recorded({"expert": TALK}, tokenizer=tokenizer).attempts[0].experiences
    assert len(given) == (1 if Renderer(tokenizer).keeps_prefix() else 2)
    for mine, theirs in zip(given, sampled, strict=True):
        assert mine.tokens_T.tolist() == theirs.tokens_T.tolist()
        assert mine.action_T.tolist() == theirs.action_T.tolist()
        assert mine.parent == theirs.parent
        assert (mine.origin_T == Origin.HISTORY).tolist() == (theirs.origin_T == Origin.HISTORY).tolist()


def test_several_turns_are_the_templates_own_tokens():
    """The newline behind each end of a turn is context, and all else is what the whole conversation renders to."""
    (one,) = recorded({"expert": TALK}, tokenizer=Newline()).attempts[0].experiences
    whole = Newline().render([ASK, *TALK], generate=False)
    assert whole == [*one.tokens_T, *encode("\n")]
    learned = CharTokenizer().decode(one.tokens_T[one.action_T], skip_special=False)
    assert learned == "<think>x</think>1<|end|>2<|end|>3<|end|>"


def test_an_earlier_turn_that_is_rendered_again_is_history_and_never_learned_twice():
    first, second = recorded({"expert": TALK}, tokenizer=DropsThoughts()).attempts[0].experiences
    words = lambda e: CharTokenizer().decode(e.tokens_T[e.action_T], skip_special=False)  # noqa: E731
    assert words(first) == "<think>x</think>1<|end|>"
    assert words(second) == "2<|end|>3<|end|>"


def test_a_text_is_learned_whole_but_for_its_first_token():
    attempt = recorded({"expert": "abc"}, ()).attempts[0]
    (one,) = attempt.experiences
    assert one.tokens_T.tolist() == encode("abc")
    assert one.origin_T.tolist() == [C, T, T] and one.action_T.tolist() == [1, 2]
    assert (attempt.role, attempt.text, attempt.messages) == ("expert", "abc", [])


def test_a_text_needs_no_chat_template():
    assert recorded({"expert": ["ab", "cd"]}, (), NoTemplate()).attempts[1].text == "cd"
    with pytest.raises(ModelError, match="no chat template"):
        recorded({"expert": [said("no")]}, tokenizer=NoTemplate())


def test_calls_of_tools_are_written_by_the_template():
    """The fake template writes them as JSON behind the content, and shows ``task.data["tools"]``."""
    call = said("", tool_calls=[{"name": "add"}])
    more = [call, {"role": "tool", "content": "5"}, said("5")]
    group = recorded({"expert": more}, tools=[{"name": "add"}])
    (one,) = group.attempts[0].experiences
    assert CharTokenizer().decode(one.tokens_T[one.action_T], skip_special=False) == '[{"name": "add"}]<|end|>5<|end|>'
    assert one.tokens_T.tolist() == CharTokenizer().render([ASK, *more], tools=[{"name": "add"}], generate=False)


def test_where_the_template_closes_with_no_end_the_tokenizers_own_is_taught():
    class Open(CharTokenizer):
        eos_ids = frozenset({4})

        def render(self, messages, *, tools=None, generate=True):
            return [token for token in super().render(messages, tools=tools, generate=generate) if token != 4]

    (one,) = recorded({"expert": [said("no")]}, tokenizer=Open()).attempts[0].experiences
    assert one.tokens_T.tolist()[-3:] == [*encode("no"), 4]


def test_a_tokenizer_without_any_end_cannot_teach_one():
    class Endless(CharTokenizer):
        eos_ids = frozenset()

    with pytest.raises(ModelError, match="no token that ends a reply"):
        recorded({"expert": [said("no")]}, tokenizer=Endless())


@pytest.mark.parametrize(
    ("given", "messages", "message"),
    [
        ({"teacher": [said("a")]}, (ASK,), "no such role"),
        ({"chosen": [said("a")]}, (ASK,), "1 chosen and 0 rejected"),
        ({"chosen": [[said("a")], [said("b")]], "rejected": [said("c")]}, (ASK,), "2 chosen and 1 rejected"),
        ({"expert": None}, (ASK,), "nothing is in it"),
        ({"expert": 7}, (ASK,), "expected messages, a text, or a list of these"),
        ({"expert": []}, (ASK,), "expected messages, a text, or a list of these"),
        ({"expert": "a text"}, (ASK,), "a text stands alone"),
        ({"expert": "a"}, (), "1 token"),
        ({"expert": [said("a"), ASK]}, (ASK,), "ends with a message of 'user'"),
        ({"expert": [said("a")]}, (), "the assistant speaks first"),
        ({"expert": [said("")]}, (ASK,), "would teach silence"),
        ({"expert": [said([{"type": "text"}])]}, (ASK,), "content must be text, got a list"),
    ],
)  # fmt: skip
def test_what_cannot_be_learned_says_why(given, messages, message):
    with pytest.raises(DataError, match="given") as caught:
        recorded(given, messages)
    assert message in str(caught.value)


def test_a_side_of_a_pair_that_is_several_sequences_is_refused_before_it_is_stored():
    with pytest.raises(DataError, match="2 turns are as many sequences"):
        recorded({"chosen": TALK, "rejected": [said("no")]}, tokenizer=DropsThoughts())


def test_a_given_group_survives_the_codec_and_an_empty_one_costs_no_byte():
    group = recorded({"chosen": [said("a")], "rejected": [said("b")]})
    back = unpack(pack(group))
    assert back.task == group.task and back.pairs == [(0, 1)]
    assert [a.role for a in back.attempts] == ["chosen", "rejected"]
    assert b"given" in pack(group) and b"given" not in pack(Group("run/g", Task("t", (ASK,)), []))
