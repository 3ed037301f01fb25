"""``trinity run -m``: all cells composed and checked first, each in its own folder, a table at the end."""

import json

import pytest

from trinity_core.commands.sweep import plan
from trinity_core.errors import ConfigError

QUICK = [
    "recipe=fake",
    "steps=1",
    "groups_per_step=1",
    "tracker=[jsonl]",
    "taskset=[numbers]",
    "tasksets.numbers.size=8",
]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(words):
    return [cell.shown for cell in plan([*QUICK, *words])]


def test_every_combination_is_a_cell_the_last_word_varying_fastest():
    assert shown(["seed=0,1", "algorithm.group_size=4,8"]) == [
        "seed=0 algorithm.group_size=4",
        "seed=0 algorithm.group_size=8",
        "seed=1 algorithm.group_size=4",
        "seed=1 algorithm.group_size=8",
    ]


def test_hydras_grammar_sweeps_options_lists_ranges_and_globs():
    assert shown(["loss=ppo,importance_sampling"]) == ["loss=ppo", "loss=importance_sampling"]
    assert shown(["seed=range(0,3)"]) == ["seed=0", "seed=1", "seed=2"]
    assert shown(["seed=choice(3,5)"]) == ["seed=3", "seed=5"]
    assert shown(["advantage=glob(reinforce_*)"]) == ["advantage=reinforce_pp", "advantage=reinforce_pp_baseline"]
    assert shown(["operator=[],[dynamic_sampling]"]) == ["operator=[]", "operator=[dynamic_sampling]"]


def test_a_sweep_option_brings_its_parameters_and_words_win():
    assert len(plan([*QUICK, "sweep=group_size"])) == 4
    assert [cell.config.seed for cell in plan([*QUICK, "sweep=group_size", "seed=9"])] == [9, 9]


def test_cells_have_numbered_folders():
    cells = plan([*QUICK, "out=there", "seed=0,1"])
    assert [str(cell.folder) for cell in cells] == ["there/0", "there/1"]
    assert not any(word.startswith("out=") for cell in cells for word in cell.words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["seed=0,1", "algorithm.group_size=4,x"],
            "cell 1 (seed=0 algorithm.group_size=x): algorithm.group_size: expected whole number, got 'x'",
        ),
        (["loss=ppo,sft", "loss.clip_low=0.1"], "cell 1 (loss=sft): loss.clip_low: 'sft' has no such option"),
        (["loss=ppo,nope"], "cell 1 (loss=nope): no loss named 'nope'"),
        (["seed=0"], "no word has several values"),
        (["seed=0,1", "resume=x"], "a sweep starts new runs"),
    ],
)
def test_a_bad_cell_is_named_before_anything_runs(here, words, said):
    with pytest.raises(ConfigError) as caught:
        plan([*QUICK, *words])
    assert said in str(caught.value)
    assert list(here.iterdir()) == []


def test_a_folder_with_something_in_it_is_refused(here):
    (here / "there" / "1").mkdir(parents=True)
    (here / "there" / "1" / "file").touch()
    with pytest.raises(ConfigError, match=r"there/1 exists and is not empty"):
        plan([*QUICK, "out=there", "seed=0,1"])


def test_a_failing_cell_does_not_stop_the_others_and_the_code_says_so(trinity, here):
    (here / "moody.py").write_text(
        "from dataclasses import dataclass\nfrom trinity_core.protocols import Tracker\n"
        "@dataclass(frozen=True)\nclass Moody(Tracker):\n    fails: bool = False\n"
        "    def step(self, step, metrics):\n        assert not self.fails, 'in a mood'\n"
    )
    done = trinity("run", "-m", *QUICK, "tracker=[moody:Moody]", "trackers.moody.fails=true,false", "out=there")
    assert done.returncode == 1, done.stderr
    assert "in a mood" in done.stderr
    status = [json.loads((here / "there" / n / "summary.json").read_text())["status"] for n in ("0", "1")]
    assert status == ["failed", "finished"]
    assert "failed" in done.stdout and "finished" in done.stdout  # the table


@pytest.mark.slow
def test_each_cell_equals_the_same_run_alone(trinity, here):
    done = trinity("run", "-m", *QUICK, "seed=0,1", "algorithm.group_size=4,8", "out=there")
    assert done.returncode == 0, done.stderr
    for number, (seed, size) in enumerate([(0, 4), (0, 8), (1, 4), (1, 8)]):
        alone = trinity("run", *QUICK, f"seed={seed}", f"algorithm.group_size={size}", f"out=alone{number}")
        assert alone.returncode == 0, alone.stderr
        digests = [trinity("digest", folder).stdout for folder in (f"there/{number}", f"alone{number}")]
        assert digests[0] == digests[1] != ""
