"""What a run of the loops does when something is off, and what it says meanwhile."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time

import numpy as np
import pytest
from run_parts import Right, Shape
from small_runs import FAKE, events, run, stored

from trinity_core.algo.assemble import assemble
from trinity_core.algo.cut import cut, packed_tokens
from trinity_core.builtins.backends.fake import Fake
from trinity_core.builtins.engines.fake import FakeEngine
from trinity_core.builtins.operators.dynamic_sampling import DynamicSampling
from trinity_core.errors import DataError, RunError
from trinity_core.kinds import CONFIG_KINDS
from trinity_core.plugins import catalog, registration
from trinity_core.rollout.recorder import Recorder
from trinity_core.rollout.seeds import seed_of
from trinity_core.testing.fakes import FakeRun, config_for, fake_group
from trinity_core.testing.one_update import batch_for
from trinity_core.types import Completion, Key, Ok, Request, Sampling

# --- what is trained --------------------------------------------------------------------------------------------------


def scored(*parts):
    """A group whose attempts have these (right, shape) parts."""
    group = fake_group([0.0] * len(parts))
    for attempt, (right, shape) in zip(group.attempts, parts):
        attempt.score = Ok(right + shape, {"right": right, "shape": shape})
    return group


def test_the_filter_looks_at_the_score_it_was_told_to():
    """ADV-22: all attempts are wrong and a shaped part differs: no accuracy signal, however different the totals are."""
    phantom, real = scored((0.0, 0.1), (0.0, 0.9)), scored((0.0, 0.5), (1.0, -0.5))
    assert DynamicSampling()(phantom) == [phantom]
    assert DynamicSampling(key="right")(phantom) == []
    assert DynamicSampling(key="right")(real) == [real], "the totals are equal, what is right differs"


def test_what_a_filter_drops_is_counted_in_the_metrics(tmp_path):
    """ADV-22: every trained group has spread in the filter's own key, and the log says how many had none."""
    words = (
        "+reward@rewards.shape=run_parts:Shape",
        "operator=[dynamic_sampling]",
        "operators.dynamic_sampling.key=right",
    )
    run(*FAKE, *words, "algorithm.group_size=8", "steps=3", f"out={tmp_path / 'run'}")
    trained = stored(tmp_path / "run")
    assert len(trained) == 12
    for group in trained:
        assert len({attempt.score.parts["right"] for attempt in group.attempts}) == 2
    logged = [line.get("groups/filtered/dynamic_sampling", 0.0) for line in events(tmp_path / "run", "step")]
    draws = max(group.draw for group in trained) + 1
    assert sum(logged) == draws - 12 > 0, "every draw was trained or filtered"


def test_a_run_that_has_nothing_to_train_ends_at_its_first_step(tmp_path):
    """CFG-05: every token is masked: a run would go on for ever with a loss of 0."""
    with pytest.raises(
        RunError, match=r"step 1: none of its 4 groups has an action token.*16 sequences in which nothing"
    ):
        run(*FAKE, "+operator@operators.mask=run_parts:Masked", "steps=9", f"out={tmp_path / 'run'}")
    assert events(tmp_path / "run", "step") == []


def test_a_step_without_a_trainable_token_is_warned_of_when_others_had_some(tmp_path):
    """CFG-05: one such step among others is no reason to end a run, and no reason to be silent."""
    mask = ("+operator@operators.mask=run_parts:Masked", "operators.mask.since=4")
    summary = run(*FAKE, *mask, "steps=2", f"out={tmp_path / 'run'}")
    assert summary["steps"] == 2
    first, second = events(tmp_path / "run", "step")
    assert first["weights/moved"] > 0 and second["weights/moved"] == 0 and second["loss"] == 0
    assert any("step 2: no action token" in line["message"] for line in events(tmp_path / "run", "warned"))


def test_an_engine_without_log_probabilities_is_an_error_and_never_a_ratio_of_one(tmp_path):
    """LPM-15: nothing is filled in where the sampler is silent; the message names what is missing."""
    with pytest.raises(RunError, match=r"[1-9]\d* sampled tokens whose log-probability the engine did not give"):
        run(*FAKE, "engine=run_parts:Silent", "steps=2", f"out={tmp_path / 'run'}")


@pytest.mark.parametrize("logp", [[{"token": "7", "logprob": -0.1}], ["x"], [None]], ids=repr)
def test_log_probabilities_of_another_type_are_refused(logp):
    """LPM-15: a map, a word or nothing in the place of a number is the engine's fault and is said to be."""
    answer = Completion(np.array([7], np.int32), logp, "stop", [(0, 0)])
    with pytest.raises(DataError, match="no numbers"):
        Recorder().record([1, 2], answer, Sampling())


def test_a_teacher_that_is_the_student_teaches_nothing():
    """TOK-15: both see the same tokens, so the difference is exactly 0 for the same weights, and not for others."""
    for seed, same in ((0, True), (1, False)):
        backend = Fake(noise=1.0, teacher_seed=seed).open(FakeRun(seed=0))
        batch = batch_for(backend)
        student_N, teacher_N = (
            backend.measure(batch, model, frozenset({"logp"}))["logp"] for model in ("policy", "teacher")
        )
        assert np.array_equal(student_N, teacher_N) == same


# --- what was promised ------------------------------------------------------------------------------------------------


def diary(folder, event):
    lines = [json.loads(line) for line in (folder / "diary.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def test_the_plan_says_what_a_batch_counts_and_the_run_keeps_it(tmp_path):
    """CFG-01: prompts × attempts = samples, and optimizer steps for each: printed before, and true afterwards."""
    words = ("tracker=[jsonl]", "+tracker@trackers.diary=run_parts:Diary", "optim.epochs=2", "optim.mini_batches=2")
    run(*FAKE, *words, "steps=1", f"out={tmp_path / 'run'}")
    (started,) = diary(tmp_path / "run", "started")
    plan = started["what"]["plan"]["a step"]
    assert plan["samples"] == "4 tasks × 4 attempts = 16"
    assert plan["updates"] == "2 epochs × 2 mini-batches = 4"
    assert plan["tokens"] == "at most 32 sampled"
    (step,) = events(tmp_path / "run", "step")
    assert (step["groups/count"], step["attempts/count"]) == (4, 16)
    assert step["tokens/sampled"] <= 32
    taken = json.loads((tmp_path / "run" / "checkpoints" / "step-000001" / "backend" / "state.json").read_text())
    assert taken["policy"] == 4


def test_a_run_shows_signs_of_life_before_its_first_step(tmp_path):
    """RUN-11: tokens and tokens per second from the first second, however long a step takes."""
    words = ("+tracker@trackers.diary=run_parts:Diary", "rewards.right.wait_s=1.2")
    run(*FAKE, *words, "steps=1", f"out={tmp_path / 'run'}")
    beats, (step,) = diary(tmp_path / "run", "progress"), diary(tmp_path / "run", "step")
    before = [beat for beat in beats if beat["s"] < step["s"]]
    assert len(before) >= 2 and before[0]["s"] < 1.0
    assert all({"phase", "tokens", "tokens_per_s"} <= set(beat["what"]) for beat in before)
    assert before[-1]["what"]["tokens"] > 0 and before[-1]["what"]["tokens_per_s"] > 0


def test_one_device_or_none_is_enough():
    """RUN-11: the defaults ask for the GPU that is there, and for the CPU where there is none."""
    import torch

    from trinity_core.builtins.backends.local import Local
    from trinity_core.builtins.engines.hf import HF
    from trinity_core.builtins.models.causal import pick_device

    assert Local().device == HF().device == "auto"
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_waiting_ends_with_a_message(tmp_path):
    """RUN-03: a workflow that never ends does not hang the run: the wait has an end, and says what it waited for."""
    with pytest.raises(RunError, match=r"step 1: 0 of 4 groups after 1 s \(trainer\.wait_s\)"):
        run(*FAKE, "workflow=run_parts:Waits", "trainer.wait_s=1", "steps=1", f"out={tmp_path / 'run'}")


def test_the_largest_micro_batch_comes_first_and_none_is_larger_than_asked_for():
    """RUN-07: a step that does not fit in memory fails at its start, not at the longest batch hours later."""
    lengths = [[3, 90, 5, 2], [40, 41, 2, 2], [7, 1, 1, 300], [2, 2, 2, 2]]
    groups = [fake_group([1.0, 0.0, 0.0, 1.0], each, draw=draw, row=draw) for draw, each in enumerate(lengths)]
    batch = assemble(groups, seed=0, step=0)
    for budget in (64, 128, 1024):
        cuts = cut(batch, scope="token", max_tokens=budget)
        costs = [packed_tokens(batch, rows) for rows in cuts]
        assert costs == sorted(costs, reverse=True)
        assert all(cost <= budget or len(rows) == 1 for cost, rows in zip(costs, cuts))
        assert sorted(np.concatenate(cuts)) == list(range(16))


def test_a_name_is_looked_up_in_this_process():
    """RUN-04: a lookup inside the loop is a look into a table: no other process is asked, nothing is waited for."""
    names = [(kind, name) for kind in CONFIG_KINDS for name in catalog(kind)]

    async def look_up():
        before = (threading.active_count(), len(asyncio.all_tasks()))
        began = time.perf_counter()
        found = [registration(kind, name).target for _ in range(10) for kind, name in names]
        return found, time.perf_counter() - began, (threading.active_count(), len(asyncio.all_tasks())) == before

    found, seconds, alone = asyncio.run(look_up())
    assert len(found) == 10 * len(names) > 100 and alone
    assert seconds < 1.0 and "ray" not in sys.modules


# --- seeds ------------------------------------------------------------------------------------------------------------


def tokens_of(group):
    return [attempt.experiences[0].tokens_T.tolist() for attempt in group.attempts]


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    """One step each: twice with seed 5, once with seed 6."""
    folder = tmp_path_factory.mktemp("seeded")
    for name, seed in (("one", 5), ("two", 5), ("other", 6)):
        run(*FAKE, f"seed={seed}", "steps=1", f"out={folder / name}")
    return folder


def test_the_users_seed_reaches_every_sampled_token(seeded):
    """RUN-09: equal seeds sample equal tokens, run id and folder apart; another seed samples others."""
    played = {name: [tokens_of(group) for group in stored(seeded / name)] for name in ("one", "two", "other")}
    assert played["one"] == played["two"] != played["other"]
    assert stored(seeded / "one")[0].id != stored(seeded / "two")[0].id


def test_any_stored_attempt_can_be_sampled_again(seeded):
    """RUN-09: what is stored names the noise of each request: engine, seed and key give the tokens back, one by one,
    and another seed gives others from the same weights."""
    engine = FakeEngine().open(FakeRun(seed=5))
    engine.version = 0
    found = {5: [], 6: []}
    played = []
    for group in stored(seeded / "one"):
        for attempt in group.attempts:
            (experience,) = attempt.experiences
            (call,) = experience.calls
            played.append(experience.tokens_T[call.start : call.stop].tolist())
            key = Key(group.slot, group.row, group.draw, attempt.index)
            for seed, again in found.items():
                request = Request(key, experience.tokens_T[: call.start], call.sampling, seed_of(seed, key))
                again.append(asyncio.run(engine.generate(request)).tokens_N.tolist())
    assert found[5] == played != found[6]


# --- evaluation -------------------------------------------------------------------------------------------------------

HELD = ("+taskset@eval.tasksets.held=trinity_core.testing.fakes:Digits",)


def settings_of(*words, tokenizer=None):
    from trinity_core.run.evaluate import Evaluator

    run_ = FakeRun(config=config_for(*HELD, *words), tokenizer=tokenizer)
    return Evaluator(run_).settings("held")


def test_whatever_an_evaluation_depends_on_is_in_its_hash(tmp_path):
    """TRK-06: two scores of one hash were taken under the same temperature, lengths, rewards, tasks and template."""
    from trinity_core.rollout.tokenizer import HFTokenizer
    from trinity_core.testing.tiny import CHATML, make_tiny

    base = settings_of()
    assert settings_of("optim.lr=0.01", "steps=99", "groups_per_step=3") == base, "training is none of it"
    changed = [
        settings_of(word)
        for word in ("eval.temperature=0.5", "eval.attempts=4", "sampling.max_response=9", "sampling.stop=[x]",
                     "eval.tasksets.held.start=10", "seed=3")
    ]  # fmt: skip
    make_tiny(tmp_path / "tiny")
    (tmp_path / "other.jinja").write_text("Be brief. " + CHATML)
    templates = [HFTokenizer(tmp_path / "tiny", path) for path in (None, str(tmp_path / "other.jinja"))]
    changed += [settings_of(tokenizer=tokenizer) for tokenizer in templates]
    assert len({base, *changed}) == 1 + len(changed)


def test_a_score_is_logged_with_the_hash_of_its_settings(tmp_path):
    """TRK-06: in the metrics and in the summary, with the version it was taken at."""
    summary = run(*FAKE, *HELD, "eval.every=1", "steps=1", f"out={tmp_path / 'run'}")
    logged = events(tmp_path / "run", "evaluated")
    assert [line["step"] for line in logged] == [0, 1]
    assert len({line["settings"] for line in logged}) == 1 and len(logged[0]["settings"]) == 16
    assert summary["eval_after"]["settings"] == logged[0]["settings"]


def test_parts_of_these_runs_score_as_they_say():
    """ADV-22: the shaped part differs where the right one does not."""
    attempts = fake_group([None, None], texts=["12", "21"]).attempts
    assert [asyncio.run(Right()(attempt)) for attempt in attempts] == [0.0, 0.0]
    assert len({asyncio.run(Shape()(attempt)) for attempt in attempts}) == 2
