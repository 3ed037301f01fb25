"""Known failures of data that was not sampled, and of groups that teach nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from templates import SYSTEM, Begins

from tests.e2e.given_parts import groups, run, steps
from trinity_core.builtins.fake.tokenizer import END, CharTokenizer
from trinity_core.errors import RunError
from trinity_core.rollout.given import record
from trinity_core.rollout.renderer import Renderer
from trinity_core.run.audit import audit
from trinity_core.types import Experience, Group, Task

ASK = {"role": "user", "content": "hi"}
GIVEN = [{"role": "assistant", "content": "1"}, ASK, {"role": "assistant", "content": "2"}]


class Opens(CharTokenizer):
    """Its texts begin with ``<|system|>``; a text that says so itself is encoded so."""

    bos_id = SYSTEM

    def encode(self, text):
        rest = text.removeprefix("<s>")
        return [*[SYSTEM] * (rest != text), *super().encode(rest)]


def experience(given, messages, tokenizer) -> Experience:
    group = Group("run/g", Task("t", tuple(messages), given={"expert": given}), [])
    record(group, Renderer(tokenizer))
    (one,) = group.attempts[0].experiences
    return one


@pytest.mark.parametrize("text", ["abc", "<s>abc"])
def test_a_text_begins_with_the_begin_token_once(text):
    """TOK-16: a text that begins with the token already gets no second one."""
    one = experience(text, (), Opens())
    assert one.tokens_T.tolist() == [SYSTEM, *CharTokenizer().encode("abc")]
    assert one.action_T.tolist() == [1, 2, 3]


def test_a_conversation_has_the_templates_begin_token_and_no_other():
    """TOK-17: it is there, and once: what the template writes is not written again."""
    one = experience(GIVEN, (ASK,), Begins())
    assert one.tokens_T.tolist().count(SYSTEM) == 1 and one.tokens_T[0] == SYSTEM


def test_the_end_of_each_turn_is_learned():
    """TOK-18: what is learned is known from where it stands, so an end that is also the padding is not left out."""
    one = experience(GIVEN, (ASK,), CharTokenizer())
    ends_T = np.flatnonzero(one.tokens_T == END)
    # the end of each question is context, the end of each answer target
    assert [bool(at in one.action_T) for at in ends_T] == [False, True, False, True]


@pytest.mark.slow
def test_dynamic_sampling_refills_a_step_with_other_draws(tmp_path):
    """ADV-11: every step trains its four groups, all of them with a spread; what was dropped is counted."""
    run(tmp_path / "run", "operator=[dynamic_sampling]", "steps=6", "algorithm.group_size=4", "~eval.tasksets.heldout")
    lines = steps(tmp_path / "run")
    assert [line["groups/count"] for line in lines] == [4.0] * 6
    assert [line["groups/zero_spread"] for line in lines] == [0.0] * 6
    assert sum(line.get("groups/filtered/dynamic_sampling", 0.0) for line in lines) > 0
    for group in groups(tmp_path / "run"):
        assert len({attempt.value for attempt in group.attempts}) > 1
    assert audit(tmp_path / "run").clean


@pytest.mark.slow
@pytest.mark.parametrize("when", ["train", "stop"])
def test_endless_constant_groups_stop_with_the_reason(when, tmp_path):
    """ADV-11: no group has a spread, so after 3 × 4 draws there is nothing to train on, and the run says why."""
    words = ("operator=[dynamic_sampling]", "explorer.max_draws=3", f"explorer.when_short={when}", "reward=[]",
             "+reward@rewards.same=tests.e2e.given_parts:Same", "algorithm.group_size=2", "~eval.tasksets.heldout")  # fmt: skip
    with pytest.raises(RunError) as caught:
        run(tmp_path / "run", *words, "steps=2")
    said = str(caught.value)
    assert said.startswith("step 1: 12 draws gave 0 of 4 groups (12 × filtered by dynamic_sampling)")
    assert "explorer.max_draws" in said and audit(tmp_path / "run").clean
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed" and summary["error"] == said
