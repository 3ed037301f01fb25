"""``trinity plan``: what is counted is exact, what is estimated is there, bad input is answered as a run answers, and nothing stays."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import mmap
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from trinity_core.cli import main
from trinity_core.config.schema import Sync
from trinity_core.protocols import Reward, Taskset
from trinity_core.run import estimate_steps
from trinity_core.run.estimate import step_seconds
from trinity_core.run.estimate_memory import BETWEEN, Memory, Phases
from trinity_core.run.estimate_sizes import Line, common, lengthened, replicated
from trinity_core.run.estimate_steps import StepTime
from trinity_core.run.estimate_trial import Trial
from trinity_core.types import Attempt, Call, Experience, Group, Origin, Sampling, Task

MB = 2**20


@dataclasses.dataclass(frozen=True)
class Empty(Taskset):
    """No task."""

    def __len__(self) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class NotThere(Reward):
    """Raises when it is opened."""

    def open(self, run):
        raise ValueError("the judge is not there")

    async def __call__(self, attempt):
        return 0.0


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """An empty folder to stand in, another for temporary files, and no step repeated for long."""
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(estimate_steps, "ENOUGH_S", 0.0)


def said(*words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``trinity WORDS``."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def planned(*words: str) -> dict:
    code, out, err = said("plan", *words, "--json")
    assert code == 0, err
    return json.loads(out)


def meanings(plan: dict) -> dict[str, str]:
    return {key: entry["means"] for key, entry in plan["keys"].items()}


# --- what is counted --------------------------------------------------------------------------------------------------


def test_what_is_counted_is_exact():
    """8 tasks × 8 attempts, one update, 30 steps; checkpoints after 10, 20 and 30; evaluations before and after. Each of the ten
    prompts ``say N`` is one character a token with the frame of the fake tokenizer, and 8 × 8 of them are in a step."""
    plan = planned("recipe=fake")
    count = plan["counted"]
    assert (count["sequences"], count["updates"], count["updates_of_run"]) == (64, 1, 30)
    assert (count["checkpoints"], count["evaluations"], count["responses_worst"]) == (3, 2, 128)
    assert count["prompts"] == 64 * count["prompt_mean"] and count["tokens"] == count["prompts"] + count["responses"]
    assert 64 <= count["responses"] <= 128 and 8 * 4 <= count["computed"] < count["tokens"]
    assert (count["micro_batches"], count["micro_tokens"]) == (1, count["computed"])


def test_every_key_that_sizes_something_says_what_comes_of_it():
    said_of = meanings(
        planned(
            "recipe=fake", "optim.mini_batches=4", "optim.epochs=2", "explorer.wave=24", "explorer.max_concurrent=48",
            "steps=25", "eval.every=10", "eval.limit=6", "eval.attempts=2",
        )
    )  # fmt: skip
    assert said_of["steps"] == "200 draws from 10 tasks: each 20 times"
    assert said_of["groups_per_step"] == "8 tasks a step, each one group"
    assert said_of["algorithm.group_size"] == "64 sequences a step"
    assert said_of["optim.mini_batches"].startswith("2 groups, 16 sequences, ")
    assert said_of["optim.epochs"] == "each sequence in 2 updates a step: 8 updates a step, 200 in the run"
    assert said_of["backend.micro_tokens"].startswith("1 micro-batch of ")
    assert said_of["explorer.wave"] == "3 waves of up to 24 requests a step, for each call of an attempt"
    assert said_of["explorer.max_concurrent"] == "48 of the 64 attempts of a step at once"
    assert said_of["sampling.max_response"] == "128 tokens a step at most"
    assert said_of["checkpoint.every"] == "3 checkpoints in the run"
    assert said_of["checkpoint.keep"].startswith("the last 2 stay, ")
    assert said_of["eval.every"] == "4 evaluations in the run"
    assert said_of["eval.limit"] == "6 tasks an evaluation"
    assert said_of["eval.attempts"] == "12 attempts an evaluation"


def test_one_is_singular_and_none_is_said():
    words = ("recipe=fake", "groups_per_step=1", "steps=1", "eval.limit=1", "sync.interval=1", "--dry")
    plan = planned(*words)
    said_of, step = meanings(plan), plan["plan"]["a step"]
    assert said_of["steps"] == "1 draw from 10 tasks: 10% of them" and said_of["optim.mini_batches"].startswith(
        "1 group, "
    )
    assert said_of["checkpoint.keep"] == "the last one stays" and said_of["eval.attempts"] == "1 attempt an evaluation"
    assert step["samples"] == "1 task × 8 attempts = 8" and step["updates"] == "1 epoch × 1 mini-batch = 1"
    assert plan["plan"]["the run"]["sync"] == "ordered, every step, 0 ahead"
    assert meanings(planned("recipe=fake", "steps=0", "--dry"))["checkpoint.keep"] == "none is written"


def test_micro_batches_are_those_the_backend_cuts():
    """No sequence fits in one token, so each of the 64 stands alone."""
    plan = planned("recipe=fake", "backend.micro_tokens=1")
    assert plan["counted"]["micro_batches"] == 64
    assert meanings(plan)["backend.micro_tokens"].startswith("64 micro-batches of at most ")


def test_play_that_runs_ahead_says_how_far():
    said_of = meanings(planned("recipe=fake", "sync.interval=2", "sync.offset=1", "correction=[truncated_is]"))
    assert said_of["sync.interval"] == "weights are delivered every 2 steps"
    assert said_of["sync.offset"] == "up to 24 groups are played and not trained yet"
    said_of = meanings(planned("recipe=fake", "sync.mode=async", "sync.max_staleness=1", "correction=[truncated_is]"))
    assert said_of["sync.max_staleness"] == "up to 16 groups are played and not trained yet"


def test_data_that_is_given_is_counted_without_play():
    plan = planned("recipe=fake", "algorithm=sft", "tasksets.digits.demonstrations=true", "eval.before=false")
    assert plan["counted"]["sequences"] == 8 and "algorithm.group_size" not in plan["keys"]
    assert "response_mean" not in plan["counted"] and "step_worst" not in plan["seconds"]


# --- what is printed --------------------------------------------------------------------------------------------------


def test_it_prints_what_the_run_prints_first_and_then_sizes_time_and_memory():
    code, out, _ = said("plan", "recipe=fake", "steps=2", "out=there")
    assert code == 0
    code, ran, _ = said("run", "recipe=fake", "steps=2", "out=there")
    assert code == 0
    mine, theirs = ([" ".join(line.split()) for line in text.splitlines()] for text in (out, ran))
    begin = next(n for n, line in enumerate(theirs) if line.startswith("model path"))
    end = next(n for n, line in enumerate(theirs) if line.startswith("folder"))
    assert mine[: end - begin] == theirs[begin:end]
    assert mine[end - begin] == "folder there"
    sections = [line.split("  ")[0] for line in out.splitlines() if not line.startswith(" ")]
    assert sections == ["model", "algorithm", "a step", "the run", "a step, counted", "sizes", "time", "memory", "how"]


def test_time_and_memory_have_every_phase():
    plan = planned("recipe=fake")
    seconds, memory = plan["seconds"], plan["memory_mb"]
    assert seconds["sampling"] + seconds["training"] + seconds["rest"] == pytest.approx(seconds["step"], rel=1e-9)
    assert seconds["step_worst"] >= seconds["step"]
    saved = 2 * seconds["checkpoint_wait"] + seconds["checkpoint"]
    whole = seconds["start"] + 30 * seconds["step"] + 2 * seconds["evaluation"] + saved
    assert seconds["run"] == pytest.approx(whole)
    phases = ("load", "sampling", "training", "checkpoint", "evaluation", "between")
    assert memory["peak"] == pytest.approx(max(memory[name] for name in phases) + memory["processes"])
    assert 50 < memory["load"] <= memory["peak"] <= memory["peak_worst"] < memory["room"]
    assert memory["processes"] > 0, "the reward computes in a process of its own"


def test_an_explorer_alone_trains_nothing_and_a_bench_only_evaluates():
    plan = planned("recipe=fake", "mode=explore", "buffer=sql", "steps=3")
    assert "optim.epochs" not in plan["keys"] and plan["counted"]["checkpoints"] == 0
    assert plan["seconds"]["run"] == pytest.approx(plan["seconds"]["start"] + 3 * plan["seconds"]["sampling"])
    plan = planned("recipe=fake", "mode=bench")
    assert plan["counted"] == {"attempts": 10} | {
        key: plan["counted"][key] for key in plan["counted"] if "prompt" in key
    }
    assert plan["seconds"]["run"] == pytest.approx(plan["seconds"]["start"] + plan["seconds"]["evaluation"])
    assert "training" not in plan["memory_mb"]


def test_a_sweep_is_planned_cell_by_cell_and_stages_one_after_the_other():
    code, out, _ = said("plan", "-m", "recipe=fake", "seed=0,1", "--dry")
    assert code == 0 and [line for line in out.splitlines() if line.startswith("---")] == [
        "--- 0: seed=0",
        "--- 1: seed=1",
    ]
    code, out, _ = said("plan", "recipe=sft_then_grpo", "--dry")
    titles = [line for line in out.splitlines() if line.startswith("---")]
    assert code == 0 and titles == ["--- stage 1 (stage/sft)", "--- stage 2 (stage/grpo)"]


def test_its_words_are_completed_like_those_of_a_run():
    from trinity_core.commands.completion import candidates

    assert "plan" in candidates([""])
    assert "loss=ppo" in candidates(["plan", "loss=p"]) and "--dry" in candidates(["plan", "optim"])
    assert "--dry" not in candidates(["run", "optim"])


def test_a_plan_says_what_each_option_does_without_loading_anything():
    code, out, err = said("plan", "--help")
    assert (code, err) == (0, "") and "--dry" in out and "--json" in out


# --- without the model ------------------------------------------------------------------------------------------------


def test_dry_counts_without_the_model_and_says_what_is_not_estimated(tmp_path):
    """The model's folder is empty: nothing could be opened."""
    code, out, err = said("plan", "recipe=quickstart", f"model.path={tmp_path}/temporary", "--dry")
    assert (code, err) == (0, "")
    assert "64 sequences a step" in out and "5 evaluations in the run" in out
    assert "not estimated" in out and "MB" not in out


def test_dry_says_so_where_a_taskset_needs_the_tokenizer(tmp_path):
    (tmp_path / "talks.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "say 1"}, {"role": "assistant", "content": "1"}]}\n'
    )
    words = ("recipe=fake", "algorithm=sft", "taskset=[conversations]", f"tasksets.conversations.path={tmp_path}/talks.jsonl",
             "tasksets.conversations.max_tokens=64", "eval.before=false")  # fmt: skip
    code, _, err = said("plan", *words, "--dry")
    assert code == 1 and "--dry opens no model. Drop --dry" in err


# --- bad input and what stays -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["recipe=fake", "sead=7"],
        ["recipe=fake", "steps", "3"],
        ["recipe=fake", "--out=foo"],
        ["recipe=fake", "loss=ppp"],
        ["recipe=fake", "resume=nowhere"],
        ["recipe=fake", "groups_per_step=0"],
        ["recipe=fake", "out=full"],
        ["recipe=fake", "model=hf", "backend=local", "engine=hf", "model.path=/nowhere/at/all"],
        ["recipe=fake", "taskset=[]", "+taskset@tasksets.bad=tests.cli.test_plan:Empty"],
        ["recipe=fake", "reward=[]", "+reward@rewards.bad=tests.cli.test_plan:NotThere"],
    ],
)
def test_bad_input_is_answered_as_a_run_answers(words):
    Path("full").mkdir()
    Path("full/file").touch()
    code, _, err = said("plan", *words)
    its_code, _, its_err = said("run", *words)
    mine = [line for line in err.splitlines() if not line.startswith("plan: ")]
    assert (code, mine) == (its_code, its_err.replace("trinity run: ", "trinity plan: ", 1).splitlines())


def test_a_joined_run_and_a_run_of_stages_are_planned_where_they_are_whole(tmp_path):
    said("run", "recipe=fake", "steps=1", f"out={tmp_path}/run", "mode=train", "buffer=memory")
    code, _, err = said("plan", "recipe=fake", "mode=explore", "join=somewhere")
    assert code == 2 and "join" in err


def test_nothing_stays_and_nothing_is_touched(tmp_path):
    words = ("recipe=fake", "steps=4", f"out={tmp_path}/run", "tracker=[console,jsonl]")
    assert said("plan", *words)[0] == 0
    assert not (tmp_path / "run").exists() and not any(Path().iterdir())
    assert said("run", *words)[0] == 0
    before = state_of(tmp_path / "run")
    plan = planned(f"resume={tmp_path}/run", "steps=10")
    assert plan["counted"]["steps"] == 6, "four of ten are done"
    assert state_of(tmp_path / "run") == before
    assert not any(Path().iterdir()) and not any((tmp_path / "temporary").iterdir())


def test_what_is_left_of_a_resumed_run_is_counted_without_the_model_too(tmp_path):
    assert said("run", "recipe=fake", "steps=4", f"out={tmp_path}/run")[0] == 0
    plan = planned(f"resume={tmp_path}/run", "steps=10", "--dry")
    assert (plan["counted"]["steps"], plan["plan"]["the run"]["steps"]) == (6, "4 → 10")
    assert plan["counted"]["checkpoints"] == 1 and plan["counted"]["evaluations"] == 1


@pytest.mark.parametrize("option", [(), ("--dry",)], ids=["measured", "dry"])
def test_a_run_that_is_done_says_so_and_how_it_goes_on(option, tmp_path):
    assert said("run", "recipe=fake", "steps=4", f"out={tmp_path}/run")[0] == 0
    code, out, err = said("plan", f"resume={tmp_path}/run", *option)
    assert (code, err) == (0, ""), "nothing is played"
    assert "the run has its 4 steps: nothing is left to do. To go on, raise steps: steps=8" in out
    assert "0 draws" not in out and "MB" not in out
    assert planned(f"resume={tmp_path}/run", *option)["counted"]["steps"] == 0


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in files}


def test_nobody_is_asked(tmp_path):
    """People would have to answer within the step; a plan takes any pair, and leaves their desk alone."""
    words = ("recipe=fake", "algorithm=dpo", "operator=[ask_people]", "reward=[]", f"operators.ask_people.path={tmp_path}/desk",
             "~eval.tasksets.digits", "algorithm.group_size=4")  # fmt: skip
    plan = planned(*words)
    assert plan["measured"]["left_out"] == ["ask_people"] and plan["counted"]["updates"] == 1
    assert not (tmp_path / "desk").exists()


def test_the_parts_of_a_step_are_those_of_the_median_step():
    """Medians of each part alone, 3 s, 3 s and 0 s, would not add up to the median step, which took 7 s."""
    trial = Trial(SimpleNamespace(sync=Sync(), groups_per_step=1), groups=1)
    trial.steps = [
        StepTime(wall=6, wait=3, train=3),
        StepTime(wall=7, wait=1, train=5),
        StepTime(wall=8, wait=6, train=2),
    ]
    assert step_seconds(trial, None) == {"sampling": 1, "training": 5, "rest": 1, "step": 7}


# --- fewer groups than a step has -------------------------------------------------------------------------------------


def test_a_large_step_is_scaled_from_one_wave(monkeypatch):
    """Sixteen requests are two groups of eight: a step of eight groups is four times the sampling; what is counted stays."""
    monkeypatch.setattr(estimate_steps, "QUICK_S", 0.0)
    plan = planned("recipe=fake", "explorer.wave=16")
    assert plan["measured"]["groups"] == 2
    count = plan["counted"]
    assert count["sequences"] == 64 and count["prompts"] == 64 * count["prompt_mean"]
    assert plan["seconds"]["step"] == pytest.approx(
        plan["seconds"]["sampling"] + plan["seconds"]["training"] + plan["seconds"]["rest"]
    )


def group(number: int, *replies: int) -> Group:
    """A prompt of four tokens, of which the last is the task's, and replies of these lengths."""
    attempts = []
    for index, size in enumerate(replies):
        tokens = np.array([1, 2, 3, 10 + number, *range(20 + index, 20 + index + size)], np.int32)
        origin = np.array([Origin.CONTEXT] * 4 + [Origin.SAMPLED] * size, np.uint8)
        logp = np.where(origin == Origin.SAMPLED, -1.0, np.nan).astype(np.float32)
        call = Call(4, 4 + size, 0, [(0, 4)], Sampling())
        attempts.append(Attempt([Experience(tokens, origin, logp, [call])], index=index))
    return Group(f"run/{number}", Task(str(number), ()), attempts)


def test_copies_share_what_tasks_share_and_no_more():
    copies = replicated([group(0, 2, 3), group(1, 1, 2)], 7, alike=3)
    first = [one.attempts[0].experiences[0].tokens_T for one in copies]
    assert len(copies) == 7 and len({one.id for one in copies}) == 7
    assert all(tokens[:3].tolist() == [1, 2, 3] for tokens in first)
    assert len({tuple(tokens.tolist()) for tokens in first}) == 7
    assert [len(tokens) for tokens in first] == [6, 5, 6, 5, 6, 5, 6]


def test_the_worst_case_has_as_many_tokens_as_an_attempt_may():
    longer = lengthened([group(0, 2, 3)], 5)[0]
    assert [attempt.num_actions for attempt in longer.attempts] == [5, 5]
    assert [attempt.experiences[0].calls[0].stop for attempt in longer.attempts] == [9, 9]


def test_what_prompts_begin_with_alike_is_the_median_over_neighbours():
    """1 2 | 3 … and 1 2 | 4 …: two; 1 2 4 and 1 2 5: two; and a stranger that shares nothing."""
    assert common([[1, 2, 3], [1, 2, 4], [1, 2, 5], [9, 9]]) == 2
    assert common([[1, 2, 3], [1, 2, 3]]) == 0, "the same task twice says nothing"


def test_a_line_is_never_below_zero():
    assert Line.through([(1.0, 3.0), (2.0, 5.0)])(10.0) == pytest.approx(21.0)
    assert Line.through([(4.0, 2.0)])(8.0) == pytest.approx(4.0), "one size: proportional"
    assert Line.through([(1.0, 5.0), (2.0, 3.0)])(9.0) == pytest.approx(4.0), "falling: the mean"
    assert Line.through([(10.0, 1.0), (20.0, 3.0)])(0.0) == 0.0


# --- memory by phase --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", [False, True], ids=["set back", "looked at"])
def test_each_phase_has_the_peak_that_was_reached_in_it(look):
    """64 MB held in one phase and given back to the system; the next does not see them."""
    phases = Phases(Memory(look=look))
    with phases.phase("large"), mmap.mmap(-1, 64 * MB) as held:  # an allocator might keep what is freed
        np.frombuffer(held, np.uint8)[:] = 1
        time.sleep(0.05 if look else 0.0)
    with phases.phase("small") as small:
        time.sleep(0.05 if look else 0.0)
    phases.memory.close()
    assert phases.peaks["large"].host - phases.peaks["small"].host > 48 * MB
    assert small.peak.host == phases.peaks["small"].host and BETWEEN in phases.peaks


def test_phases_that_overlap_both_have_the_peak():
    phases = Phases()
    with phases.phase("outer"), phases.phase("inner"):
        held = np.ones(64 * MB, np.uint8)
    del held
    phases.memory.close()
    # the outer one also has what is read between the two ends, some pages
    assert 0 <= phases.peaks["outer"].host - phases.peaks["inner"].host < MB


def test_what_is_watched_is_timed_and_sized_even_where_it_is_frozen():
    @dataclasses.dataclass(frozen=True)
    class Live:
        def work(self, numbers):
            return sum(numbers)

    live, phases = Live(), Phases()
    phases.watch(live, "work", "working", lambda result, numbers: lambda: {"numbers": len(numbers), "sum": result})
    assert live.work([1, 2, 3]) == 6
    phases.settle()
    phases.memory.close()
    assert phases.done[0].phase == "working" and phases.done[0].size == {"numbers": 3, "sum": 6}


# --- a real model -----------------------------------------------------------------------------------------------------


def test_a_tiny_model_is_planned_whole(tmp_path):
    from trinity_core.testing.tiny import make_tiny

    model = make_tiny(tmp_path / "tiny")
    words = ("recipe=quickstart", f"model.path={model}", "model.dtype=float32", "groups_per_step=4", "algorithm.group_size=4",
             "eval.before=false", "eval.after=false", "eval.every=0", "steps=3", "threads=1")  # fmt: skip
    plan = planned(*words)
    assert plan["counted"]["sequences"] == 16 and plan["measured"]["shares_prefix"]
    assert plan["counted"]["computed"] < plan["counted"]["tokens"] / 2, "four attempts share a prompt"
    assert plan["keys"]["backend.micro_tokens"]["means"].startswith("1 micro-batch of ")
    alone = planned(*words, "backend.share_prefix=false")
    assert not alone["measured"]["shares_prefix"] and alone["counted"]["computed"] > 3 * plan["counted"]["computed"]
