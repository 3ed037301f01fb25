"""Teachers: whose words they read, and what an engine in that role says. Coefficients and masks that the kernel adds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trinity_core.algo.assemble import assemble
from trinity_core.algo.kl import adapt
from trinity_core.builtins.backends.fake import Fake
from trinity_core.builtins.engines.fake import FakeEngine
from trinity_core.builtins.fake.tokenizer import CharTokenizer
from trinity_core.errors import RunError
from trinity_core.run import start
from trinity_core.run.teacher import EngineTeacher, in_words_of
from trinity_core.testing.fakes import FakeAttempt, FakeRun, FakeTask, config_for, fake_group
from trinity_core.types import Attempt, Call, Experience, Group, Ok, Origin, Sampling

DIGITS = ("tracker=[jsonl]", "taskset=[]", "+taskset@tasksets.digits=trinity_core.testing.fakes:Digits")
SMALL = ("sampling.max_response=2", "optim.lr=0.3", "groups_per_step=4")


class Formal(CharTokenizer):
    """Another template over the same vocabulary: an order comes before every conversation."""

    def render(self, messages: Any, **options: Any) -> list[int]:
        return super().render([{"role": "system", "content": "be right"}, *messages], **options)

    def digest(self) -> str:
        return "formal"

    def vocabulary_digest(self) -> str:
        return super().digest()


def two_calls() -> Attempt:
    """ "say it" → "ab", "again" → "c": one sequence, two calls."""
    tokenizer = CharTokenizer()
    task = FakeTask("c", "say it")
    messages = [*task.messages]
    tokens, calls, origin = list(tokenizer.render(messages)), [], []
    origin += [Origin.CONTEXT] * len(tokens)
    for step, said in enumerate(("ab", "c")):
        start_, reply = len(tokens), [*tokenizer.encode(said), min(tokenizer.eos_ids)]
        tokens += reply
        origin += [Origin.SAMPLED] * len(reply)
        calls.append(Call(start_, len(tokens), step, [(0, start_)], Sampling()))
        messages.append({"role": "assistant", "content": said})
        if step == 0:
            messages.append({"role": "user", "content": "again"})
            whole = tokenizer.render(messages)
            origin += [Origin.CONTEXT] * (len(whole) - len(tokens))
            tokens = list(whole)
    origin_T = np.array(origin, np.uint8)
    logp_T = np.where(origin_T == Origin.SAMPLED, -1.0, np.nan).astype(np.float32)
    experience = Experience(np.array(tokens, np.int32), origin_T, logp_T, calls)
    return Attempt([experience], messages=messages, score=Ok(1.0), task=task, index=1)


def group() -> Group:
    one, two = FakeAttempt("7", answer="7", score=0.0), two_calls()
    given = FakeAttempt("xy", answer="7", role="expert", index=2)
    return Group("run/0", two.task, [one, two, given])  # type: ignore[arg-type]


def test_a_teacher_with_the_same_template_reads_the_batch_itself() -> None:
    batch = assemble([group()], seed=0, step=0)
    assert in_words_of(CharTokenizer(), CharTokenizer(), [group()], batch) is batch


def test_a_teacher_with_its_own_template_reads_the_same_actions_after_its_own_context() -> None:
    groups = [group()]
    batch = assemble(groups, seed=0, step=0)
    theirs = in_words_of(Formal(), CharTokenizer(), groups, batch)
    assert theirs.tokens_T[theirs.action_N].tolist() == batch.tokens_T[batch.action_N].tolist()
    # one sequence a call: "7", "ab", "c", and what the expert said
    formal, second = Formal(), two_calls()
    spoken = [formal.decode(theirs.tokens_T[a:b]) for a, b in zip(theirs.offsets_B1, theirs.offsets_B1[1:])]
    assert spoken == ["be rightsay it7", "be rightsay itab", "be rightsay itabagainc", "be rightsay itxy"]
    before_c = formal.render(second.messages[:3], generate=True)
    assert theirs.tokens_T[theirs.offsets_B1[2] :][: len(before_c)].tolist() == before_c
    assert theirs.row_N.tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3][: len(theirs.row_N)]


def test_actions_outside_every_reply_are_refused_for_a_teacher_with_its_own_template() -> None:
    broken = group()
    broken.attempts[0].messages = []
    batch = assemble([broken], seed=0, step=0)
    with pytest.raises(RunError, match="lie outside any reply"):
        in_words_of(Formal(), CharTokenizer(), [broken], batch)


def contexts(attempt: Attempt) -> list[str]:
    """What a teacher with its own template reads before each reply of ``attempt``, and the reply."""
    groups = [Group("run/0", attempt.task, [attempt])]
    theirs = in_words_of(Formal(), CharTokenizer(), groups, assemble(groups, seed=0, step=0))
    ends = zip(theirs.offsets_B1, theirs.offsets_B1[1:])
    return [Formal().decode(theirs.tokens_T[a:b]) for a, b in ends]


def test_replies_of_examples_in_the_prompt_are_not_the_policys() -> None:
    """With a solved example before the question, the only call is the second assistant's message, not the first."""
    attempt = FakeAttempt("7", answer="7", score=1.0)
    example = [{"role": "user", "content": "say 3"}, {"role": "assistant", "content": "7"}]
    attempt.messages = [*example, *attempt.messages]
    asked = attempt.messages[2]["content"]
    assert contexts(attempt) == [f"be rightsay 37{asked}7"]


def test_a_call_whose_reply_was_taken_out_of_the_conversation_is_refused() -> None:
    """A workflow that forgets earlier turns: what the policy read before the first call is nowhere."""
    attempt = two_calls()
    del attempt.messages[:2]
    with pytest.raises(RunError, match="lie outside any reply"):
        contexts(attempt)


def test_given_turns_that_are_sequences_of_their_own_have_their_own_context() -> None:
    """A template that does not keep earlier turns: each reply stands behind the messages before it, not before the last one."""
    tokenizer, task, rows = CharTokenizer(), FakeTask("c", "say it"), []
    messages = [*task.messages]
    for said, asked in (("ab", "again"), ("c", "")):
        before, words = tokenizer.render(messages), tokenizer.encode(said)
        tokens = np.array([*before, *words], np.int32)
        origin = np.array([Origin.CONTEXT] * len(before) + [Origin.TARGET] * len(words), np.uint8)
        rows.append(Experience(tokens, origin, np.full(len(tokens), np.nan, np.float32)))
        messages += [{"role": "assistant", "content": said}, *([{"role": "user", "content": asked}] if asked else [])]
    attempt = Attempt(rows, "expert", "c", messages, task=task)
    assert contexts(attempt) == ["be rightsay itab", "be rightsay itabagainc"]


def steps(tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    words = (*DIGITS, *SMALL, *words)
    start(config_for(*words), list(words), out=tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "step"]


def test_an_engine_says_what_a_model_of_the_backend_with_its_weights_says() -> None:
    run = FakeRun()
    backend, engine = Fake(noise=1.0).open(run), FakeEngine().open(run)

    async def ask() -> Any:
        await engine.load(backend.publish(0, copy=True))
        teacher = EngineTeacher(engine, backend.tokenizer, asyncio.get_running_loop())
        return await asyncio.to_thread(teacher.measure, groups, batch, frozenset({"logp"}))

    groups = [fake_group([1.0, 0.0], [5, 2], row=row, draw=row) for row in range(2)]
    batch = assemble(groups, seed=0, step=0)
    expected = backend.measure(batch, "reference", frozenset({"logp"}))["logp"]
    found = asyncio.run(ask())["logp"]
    assert found.shape == (14,) and np.abs(found - expected).max() < 1e-6  # scores are float32


def test_the_policy_has_nothing_to_learn_from_itself(tmp_path: Path) -> None:
    """The auxiliary engine holds the weights that the policy starts from."""
    first = steps(tmp_path, "algorithm=on_policy_distill", "+engine@models.teacher.engine=fake", "steps=1")[0]
    assert abs(first["advantage"]) < 1e-6 and first["grad_norm"] < 1e-6


def test_an_adaptive_coefficient_follows_the_kl_of_the_step(tmp_path: Path) -> None:
    """Nothing has moved at step 1: KL 0 is under the target, so by the clip the coefficient falls by 0.2 · 16/100."""
    kl = ("algorithm.kl.coef=0.1", "algorithm.kl.target=0.5", "algorithm.kl.horizon=100", "algorithm.group_size=4")
    logged = steps(tmp_path, *kl, "steps=3")
    assert logged[0]["kl/coef"] == 0.1
    assert logged[1]["kl/coef"] == pytest.approx(0.1 * (1 - 0.2 * 16 / 100), rel=1e-9)
    assert logged[1]["kl/coef"] == pytest.approx(adapt(0.1, 0.0, 0.5, 100, 16), rel=1e-9)


def test_attempts_cut_short_are_left_out_of_the_loss_where_asked(tmp_path: Path) -> None:
    words = ("algorithm.mask_truncated=true", "algorithm.denominator=kept", "sampling.max_response=1", "steps=2")
    logged = steps(tmp_path, *words)
    # with room for one token, whatever is not the end itself is cut short
    assert all(0 < line["response/truncated"] < 1 and line["kept"] < 1 for line in logged)
