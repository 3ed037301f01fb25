"""Whole runs on data that was not sampled, and on pairs made of what was: they learn, and resume to the same end."""

from __future__ import annotations

import json
import threading
import time

import pytest

from tests.e2e.given_parts import groups, resumed, run, steps
from trinity_core.commands import judge
from trinity_core.errors import RunError
from trinity_core.rollout.questions import answer_path, read_question, waiting, write
from trinity_core.run.audit import audit
from trinity_core.run.digest import digest
from trinity_core.types import Origin

pytestmark = pytest.mark.slow

SFT = ("algorithm=sft", "tasksets.digits.demonstrations=true")
DPO = ("algorithm=dpo", "tasksets.digits.preferences=true")
PAIRS = ("algorithm=dpo", "operator=[best_worst]")

# --- they learn -----------------------------------------------------------------------------------------------------------


def test_demonstrations_teach_and_nothing_is_sampled(tmp_path):
    summary = run(tmp_path / "run", *SFT, "steps=10")
    assert summary["eval_before"]["accuracy"] <= 0.2 and summary["eval_after"]["accuracy"] >= 0.9
    assert summary["tokens_sampled"] == 0 and summary["groups"] == 40
    assert audit(tmp_path / "run").clean
    found = groups(tmp_path / "run")
    assert len(found) == 40 and {a.role for g in found for a in g.attempts} == {"expert"}
    origins = {int(o) for g in found for a in g.attempts for e in a.experiences for o in e.origin_T[e.action_T]}
    assert origins == {int(Origin.TARGET)}


def test_a_run_on_given_data_needs_no_reward(tmp_path):
    assert run(tmp_path / "run", *SFT, "reward=[]", "~eval.tasksets.heldout", "steps=2")["status"] == "finished"


def test_group_size_does_not_multiply_what_is_given_and_the_plan_says_so(tmp_path, capsys):
    run(tmp_path / "run", *SFT, "algorithm.group_size=8", "steps=1", "tracker=[jsonl,console]")
    assert [len(group.attempts) for group in groups(tmp_path / "run")] == [1] * 4
    plan = capsys.readouterr().out
    assert "4, with what they give: nothing is sampled" in plan and "digits (10 with expert)" in plan
    assert "attempts =" not in plan and "at most" not in plan


def test_given_preferences_teach(tmp_path):
    summary = run(tmp_path / "run", *DPO, "steps=30")
    assert summary["eval_before"]["accuracy"] <= 0.2 and summary["eval_after"]["accuracy"] >= 0.9
    assert summary["tokens_sampled"] == 0
    first, last = steps(tmp_path / "run")[0], steps(tmp_path / "run")[-1]
    assert first["loss"] == pytest.approx(0.693147, abs=1e-6) and last["loss"] < 0.3  # ln 2: policy is reference
    assert audit(tmp_path / "run").clean


def test_a_groups_own_best_and_worst_teach(tmp_path):
    summary = run(tmp_path / "run", *PAIRS, "steps=30")
    assert summary["eval_before"]["accuracy"] <= 0.2 and summary["eval_after"]["accuracy"] >= 0.9
    found = groups(tmp_path / "run")
    assert all([a.role for a in g.attempts] == ["chosen", "rejected"] and g.pairs == [(0, 1)] for g in found)
    assert all(g.attempts[0].value > g.attempts[1].value for g in found)
    assert audit(tmp_path / "run").clean


def test_a_file_of_conversations_is_learned_by_heart(tmp_path):
    rows = [{"prompt": f"say {n}", "response": str(n)} for n in range(10)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = (
        "algorithm=sft",
        "taskset=[conversations]",
        f"tasksets.conversations.path={tmp_path}/rows.jsonl",
        "steps=10",
    )
    assert run(tmp_path / "run", *words)["eval_after"]["accuracy"] >= 0.9


def test_texts_are_learned_whole(tmp_path):
    words = (
        "algorithm=cpt",
        "taskset=[conversations]",
        "tasksets.conversations.path=sample/texts",
        "steps=12",
        "optim.lr=1",
    )
    run(tmp_path / "run", *words, "~eval.tasksets.heldout")
    losses = [step["loss"] for step in steps(tmp_path / "run")]
    assert losses[-1] < 0.5 * losses[0], losses


# --- they resume ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [SFT, DPO, PAIRS], ids=["sft", "dpo", "best_worst"])
def test_two_halves_are_one_whole(words, tmp_path):
    run(tmp_path / "whole", *words, "steps=6")
    run(tmp_path / "halves", *words, "steps=3")
    assert digest(tmp_path / "halves") != digest(tmp_path / "whole")
    resumed(tmp_path / "halves", "steps=6")
    assert digest(tmp_path / "halves") == digest(tmp_path / "whole")
    assert audit(tmp_path / "halves").clean


# --- people ----------------------------------------------------------------------------------------------------------------


def test_people_teach_and_a_resume_asks_about_no_draw_twice(tmp_path, monkeypatch):
    """Whoever is asked takes the shorter answer: after six steps the policy's answers are shorter than at first."""
    people = ("algorithm=dpo", "operator=[ask_people]", "reward=[]", "operators.ask_people.timeout_s=20", "algorithm.group_size=4",
              "~eval.tasksets.heldout", f"operators.ask_people.path={tmp_path}/desk", "checkpoint.every=2")  # fmt: skip
    asked: list[str] = []
    over = threading.Event()

    def person() -> None:
        while not over.is_set():
            for name in waiting(tmp_path / "desk") if (tmp_path / "desk").is_dir() else ():
                if (question := read_question(tmp_path / "desk", name)) is not None:
                    asked.append(name)
                    lengths = [len(text) for text in question["candidates"]]
                    write(answer_path(tmp_path / "desk", name), {"chosen": lengths.index(min(lengths))})
            time.sleep(0.01)

    thread = threading.Thread(target=person)
    thread.start()
    try:
        run(tmp_path / "whole", *people, "steps=6")
        first = list(asked)
        run(tmp_path / "halves", *people, "steps=3")
        resumed(tmp_path / "halves", "steps=6")
    finally:
        over.set()
        thread.join()
    assert asked == first, "the second run samples what the first did, and finds every answer"
    assert digest(tmp_path / "halves") == digest(tmp_path / "whole")
    found = groups(tmp_path / "whole")
    assert all(len(g.attempts[0].text) <= len(g.attempts[1].text) for g in found)
    assert judge.main([str(tmp_path / "desk")]) == 0


def test_questions_that_nobody_answers_end_the_run_with_the_reason(tmp_path):
    words = ("algorithm=dpo", "operator=[ask_people]", "reward=[]", "operators.ask_people.timeout_s=0.1",
             "algorithm.group_size=2", "explorer.max_draws=1", "steps=1", "~eval.tasksets.heldout")  # fmt: skip
    with pytest.raises(RunError, match=r"step 1: 4 draws gave 0 of 4 groups \(4 × filtered by ask_people\)"):
        run(tmp_path / "run", *words)


# --- groups that teach nothing ----------------------------------------------------------------------------------------------


def test_without_it_groups_that_teach_nothing_are_trained_and_counted(tmp_path):
    run(tmp_path / "run", "steps=2", "algorithm.group_size=4", "~eval.tasksets.heldout")
    assert steps(tmp_path / "run")[0]["groups/zero_spread"] > 0


def test_a_step_that_fills_in_part_is_trained_short_and_says_so(tmp_path):
    """One draw in three is kept: of 2 × 4 draws a step gets 2 or 3 of its four groups."""
    words = (
        "operator=[]",
        "+operator@operators.keeps=tests.run.waiting_parts:Keeps",
        "operators.keeps.every=3",
        "explorer.max_draws=2",
    )
    run(tmp_path / "run", *words, "steps=2", "~eval.tasksets.heldout")
    warned = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    said = [line["message"] for line in warned if line["event"] == "warned"]
    assert any("8 draws gave 3 of 4 groups" in text and "it is trained short" in text for text in said), said
    assert steps(tmp_path / "run")[0]["groups/count"] == 3.0
