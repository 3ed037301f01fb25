"""From played attempts to scores."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import scoring_rewards as R

from trinity_core.config.schema import RewardSlot
from trinity_core.errors import ConfigError, RunError
from trinity_core.protocols import Reward
from trinity_core.rollout.operate import Operators
from trinity_core.rollout.pool import Pool
from trinity_core.rollout.score import Scorer, total
from trinity_core.testing.fakes import FakeRun, FakeTask, fake_group
from trinity_core.testing.scripted import parts
from trinity_core.types import Fault, Invalid, Ok


def scored(texts, *, own=None, task=None, workers=1, retries=0, also=None, **rewards):
    """Scores of attempts with these texts."""
    group = fake_group(own or [None] * len(texts), texts=texts, task=task)

    async def play():
        scorer = Scorer(parts(**rewards), FakeRun(), workers, retries=retries)
        try:
            await scorer.score(group)
            if also is not None:
                also(scorer)
        finally:
            scorer.close()

    asyncio.run(play())
    return [attempt.score for attempt in group.attempts]


# --- processes --------------------------------------------------------------------------------------------------------


def test_scores_keep_the_order_of_the_attempts():
    assert [s.value for s in scored(["a", "ccc", "", "bb"], length=R.Length())] == [1.0, 3.0, 0.0, 2.0]


def test_a_reward_is_built_in_its_process_from_its_config():
    assert scored(["aa"], length=R.Length(times=2.5)) == [Ok(5.0, {"length": 5.0})]


@pytest.mark.parametrize("text", ["spin", "sleep", "stubborn"])
def test_a_reward_that_hangs_is_killed_and_its_siblings_are_scored(text):
    seen = {}
    start = time.monotonic()
    scores = scored(["x", text, "y"], awkward=R.Awkward(), also=lambda s: seen.update(s.pool.numbers))
    assert [isinstance(s, Ok) for s in scores] == [True, False, True]
    assert scores[1] == Fault("rewards.awkward took longer than 0.5 s and was killed", retryable=False)
    assert seen == {"started": 2, "late": 1, "lost": 0}
    assert time.monotonic() - start < 20


def test_what_a_killed_reward_has_started_is_killed_too(tmp_path: Path):
    scored(["x"], child=R.Child(file=str(tmp_path / "pid")))
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 5
    while time.monotonic() < end and _alive(pid):
        time.sleep(0.02)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("text", "said", "retryable"),
    [
        ("raise", "rewards.awkward raised ZeroDivisionError: by nothing (scoring_rewards.py:51)", False),
        ("exit", "rewards.awkward raised SystemExit: 0 (scoring_rewards.py:49)", False),
        ("die", "the process of rewards.awkward died (exit code 3)", True),
        ("kill", "the process of rewards.awkward died (signal SIGKILL)", True),
        ("nan", "rewards.awkward returned nan: a score is a finite number", False),
        ("inf", "rewards.awkward returned inf: a score is a finite number", False),
        ("none", "rewards.awkward returned nothing: return a number, or Invalid(reason) if there is no score", False),
        ("word", "rewards.awkward returned a str: a score is a number, Ok, Invalid or Fault", False),
    ],
)
def test_a_reward_that_breaks_is_a_fault_and_never_a_zero(text, said, retryable):
    first, broken, last = scored(["x", text, "y"], awkward=R.Awkward())
    assert broken == Fault(said, retryable)
    assert isinstance(first, Ok) and isinstance(last, Ok)


def test_a_process_that_died_is_tried_again_and_one_that_hung_is_not():
    seen = {}
    scored(["die", "sleep"], awkward=R.Awkward(), retries=1, also=lambda s: seen.update(s.pool.numbers))
    # one dies, the next hangs, the third dies with the first item's second try
    assert seen == {"started": 3, "late": 1, "lost": 2}


def test_prints_of_a_reward_disturb_nobody():
    assert [s.value for s in scored(["print", "true"], awkward=R.Awkward())] == [1.0, 1.0]


def test_processes_are_started_when_needed_and_used_again():
    seen = []

    async def play():
        scorer = Scorer(parts(length=R.Length(), gold=R.Gold()), FakeRun(), 1)
        seen.append(scorer.pool.numbers["started"])
        for _ in range(3):
            await scorer.score(fake_group([None, None], texts=["a", "b"]))
        seen.append(scorer.pool.numbers["started"])
        scorer.close()
        scorer.close()

    asyncio.run(play())
    assert seen == [0, 1]


def test_reward_processes_do_not_load_torch_and_start_in_well_under_two_seconds():
    code = "import sys, trinity_core.rollout.worker, trinity_core.codec, trinity_core.rollout.outcome; print([m for m in ('torch', 'transformers', 'hydra') if m in sys.modules])"
    start = time.monotonic()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
    assert time.monotonic() - start < 5


def test_scoring_works_from_a_script_without_running_the_script_again(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom trinity_core.protocols import Reward\n"
        "@dataclass(frozen=True)\nclass Mine(Reward):\n    def __call__(self, attempt):\n        return 7\n"
    )
    (tmp_path / "script.py").write_text(
        "import asyncio\nprint('once', flush=True)\nfrom mine import Mine\n"
        "from trinity_core.rollout.score import Scorer\nfrom trinity_core.config.schema import Part\n"
        "from trinity_core.testing.fakes import FakeRun, fake_group\n"
        "scorer = Scorer({'mine': Part('reward', 'mine', 'rewards.mine', Mine())}, FakeRun())\n"
        "group = fake_group([None])\nasyncio.run(scorer.score(group))\nscorer.close()\nprint(group.attempts[0].value)\n"
    )
    out = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, cwd="/")
    assert out.stdout.split() == ["once", "7.0"], out.stderr


def test_a_parent_that_is_killed_takes_its_reward_processes_along(tmp_path: Path):
    code = (
        f"import sys, asyncio; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import scoring_rewards as R\nfrom trinity_core.testing.scripted import parts\nfrom trinity_core.rollout.score import Scorer\n"
        "from trinity_core.testing.fakes import FakeRun, fake_group\n"
        "R.Awkward.timeout_s = 60\n"
        "s = Scorer(parts(a=R.Awkward()), FakeRun())\n"
        "asyncio.run(s.score(fake_group([None], texts=['x'])))\n"
        "print(next(iter(s.pool._all)).process.pid, flush=True)\n"
        "asyncio.run(s.score(fake_group([None], texts=['spin'])))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _alive(pid)
        parent.kill()
    end = time.monotonic() + 10
    while time.monotonic() < end and _alive(pid):
        time.sleep(0.02)
    assert not _alive(pid)


def test_a_reward_that_its_process_cannot_import_is_refused():
    class Local(Reward):
        def __call__(self, attempt):
            return 1.0

    with pytest.raises(
        ConfigError, match=r"rewards\.local: .*Local computes in a process.*Move it to the top of a module"
    ):
        scored(["x"], local=Local())


def test_closing_while_a_reward_computes_ends_it():
    async def play():
        scorer = Scorer(parts(a=R.Child(file=os.devnull)), FakeRun())
        scoring = asyncio.create_task(scorer.score(fake_group([None])))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(scorer.close)
        with pytest.raises(RunError, match="closed"):
            await scoring

    asyncio.run(play())


# --- kinds of rewards -------------------------------------------------------------------------------------------------


def test_a_group_is_scored_against_itself():
    assert [s.value for s in scored(["aa", "bbb", "c"], rank=R.Rank())] == [1.0, 2.0, 0.0]


def test_a_group_reward_of_another_length_scores_nobody():
    for score in scored(["aa", "bbb", "c"], rank=R.Rank(short=1)):
        assert score == Fault("rewards.rank returned 2 scores for 3 attempts", retryable=False)


def test_a_reward_that_waits_runs_on_the_loop_with_what_open_gave_it():
    seen = {}
    scores = scored(
        ["a", "hang", "b"], waits=R.Waits(), also=lambda s: seen.update(live=s.judges[0].live, **s.pool.numbers)
    )
    assert seen["started"] == 0 and seen["live"].who == "run" and seen["live"].closed == 1
    assert [isinstance(s, Ok) for s in scores] == [True, False, True]
    assert scores[1].reason == "rewards.waits took longer than 0.2 s"


def test_a_retryable_fault_is_scored_again():
    assert scored(["a", "flaky"], waits=R.Waits(), retries=1)[1] == Ok(0.5, {"waits": 0.5})
    assert isinstance(scored(["a", "flaky"], waits=R.Waits(), retries=0)[1], Fault)


def test_a_reward_defines_one_of_call_and_group():
    with pytest.raises(ConfigError, match="both are there"):
        scored(["x"], both=R.Both())
    with pytest.raises(ConfigError, match="neither is there"):
        scored(["x"], neither=Reward())


# --- totals -----------------------------------------------------------------------------------------------------------


def test_the_total_is_the_weighted_sum_of_clipped_values():
    # 2·min(3, 2) + (−0.5)·1 = 3.5
    scores = scored(
        ["abc"],
        long=(R.Length(), RewardSlot(weight=2.0, clip=(0.0, 2.0))),
        rank=(R.Awkward(), RewardSlot(weight=-0.5)),
    )
    assert scores == [Ok(3.5, {"long": 3.0, "rank": 1.0})]


def test_a_gated_reward_counts_only_where_its_gate_is_positive():
    task = FakeTask("abc")
    # right: 1 + 0.1·3; wrong: 0 (the length does not count)
    scores = scored(["abc", "abcd"], task=task, gold=R.Gold(), long=(R.Length(), RewardSlot(weight=0.1, gate="gold")))
    assert [s.value for s in scores] == pytest.approx([1.3, 0.0])
    assert scores[1].parts == {"gold": 0.0, "gold.length": 4.0, "long": 4.0}


def test_a_gate_may_be_the_workflows_own_reward():
    slots = {"a": RewardSlot(gate="workflow")}
    assert total(Ok(1.0), {"a": Ok(2.0)}, slots).value == 2.0
    assert total(Ok(0.0), {"a": Ok(2.0)}, slots).value == 0.0
    assert total(None, {"a": Ok(2.0)}, slots).value == 0.0


def test_a_gate_that_is_no_other_reward_is_refused():
    with pytest.raises(ConfigError, match=r"rewards\.a\.gate: 'b' is no other reward\. Rewards: workflow"):
        scored(["x"], a=(R.Length(), RewardSlot(gate="b")))


def test_the_workflows_own_reward_is_the_total_only_where_none_is_configured():
    assert scored(["abc"], own=[0.25]) == [Ok(0.25, {"workflow": 0.25})]
    assert scored(["abc"], own=[0.25], long=R.Length()) == [Ok(3.0, {"long": 3.0, "workflow": 0.25})]


def test_nothing_that_scores_is_no_score():
    (score,) = scored(["abc"])
    assert isinstance(score, Invalid) and "reward=[" in score.reason


@pytest.mark.parametrize("bad", [Invalid("no gold"), Fault("down", False)])
def test_any_part_without_a_score_leaves_the_attempt_without_one(bad):
    assert type(total(None, {"a": Ok(1.0), "b": bad}, {"a": RewardSlot(), "b": RewardSlot(weight=0.0)})) is type(bad)


def test_a_fault_is_told_before_an_invalid():
    scores = {"a": Invalid("no gold"), "b": Fault("down")}
    assert total(None, scores, dict.fromkeys(scores, RewardSlot())) == Fault("rewards.b: down")


def test_an_attempt_that_faulted_in_play_keeps_its_fault_and_is_shown_to_no_reward():
    scores = scored(["aa", "bbb", "c"], own=[None, Fault("the tool is down"), None], rank=R.Rank())
    assert scores == [Ok(1.0, {"rank": 1.0}), Fault("the tool is down"), Ok(0.0, {"rank": 0.0})]


def test_a_total_that_is_not_finite_is_a_fault():
    scores = {"a": Ok(1e308), "b": Ok(1e308)}
    assert isinstance(total(None, scores, dict.fromkeys(scores, RewardSlot(weight=10.0))), Fault)


# --- operators --------------------------------------------------------------------------------------------------------


def operated(*slots, live=None):
    components = dict(slots)

    async def play():
        pool = Pool()
        try:
            return await Operators(components, live or components, pool).apply(fake_group([1.0, 0.0]))
        finally:
            pool.close()

    return asyncio.run(play())


def test_an_operator_that_computes_runs_in_a_process_and_may_augment():
    groups, dropped_by = operated(("doubles", R.Doubles()))
    assert [g.id.endswith("-twin") for g in groups] == [False, True]
    assert groups[1].attempts[0].info["pid"] != os.getpid()
    assert dropped_by == ""


def test_operators_run_in_order_and_the_one_that_dropped_the_group_is_named():
    assert operated(("doubles", R.Doubles()), ("drops", R.Drops()), ("after", R.Doubles())) == ([], "drops")


@pytest.mark.parametrize("trouble", ["raise", "none"])
def test_an_operator_that_breaks_ends_the_run_by_name(trouble):
    with pytest.raises(RunError, match=r"operators\.doubles: group run/"):
        operated(("doubles", R.Doubles(trouble)))


def test_a_reward_that_never_scored_anything_ends_the_run_with_its_reason():
    with pytest.raises(
        RunError, match=r"rewards\.awkward: none of the first 16 attempts could be scored; .*ZeroDivisionError"
    ):
        scored(["raise"] * 16, awkward=R.Awkward())
    # one that did score something goes on
    assert isinstance(scored(["raise"] * 16 + ["x"], awkward=R.Awkward())[0], Fault)
