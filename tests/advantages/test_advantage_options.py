"""Options of advantages: what is refused, and what the option files that are not named like a component say."""

from __future__ import annotations

import json

import pytest
from test_advantage_references import made

from trinity_core.builtins.advantages.grpo import GroupRelative
from trinity_core.builtins.advantages.opmd import MirrorDescent
from trinity_core.builtins.advantages.reinforce_pp import ReinforcePlusPlus
from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.errors import ConfigError
from trinity_core.run import start
from trinity_core.testing.fakes import config_for

REFUSED = [
    ("reinforce_pp", {"gamma": 1.5}, "gamma"),
    ("reinforce_pp", {"eps": -1e-8}, "eps"),
    ("opmd", {"tau": 0.0}, "tau"),
    ("gae", {"gamma": -0.1}, "gamma"),
    ("gae", {"lam": 1.1}, "lam"),
    ("gae", {"eps": -1.0}, "eps"),
    ("rec", {"eps": -1.0}, "eps"),
    ("step_wise_grpo", {"eps": -1.0}, "eps"),
    ("gigpo", {"gamma": 2.0}, "gamma"),
    ("gigpo", {"omega": -1.0}, "omega"),
    ("jsd_sampled", {"beta": 0.0}, "on_policy_distill"),
    ("jsd_sampled", {"beta": 1.0}, "beta"),
    ("clip_b", {"mu": -1.0}, "mu"),
    ("clip_v", {"eps": -1.0}, "eps"),
    ("clip_v", {"max_share": 0.0}, "max_share"),
]
SMALL = ("model=fake", "engine=fake", "backend=fake", "buffer=memory")


@pytest.mark.parametrize(("name", "fields", "word"), REFUSED, ids=[f"{name}-{fields}" for name, fields, _ in REFUSED])
def test_a_bad_option_is_refused_by_name(name, fields, word):
    with pytest.raises(ConfigError, match=word):
        made(name, fields)


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("dr_grpo", GroupRelative(normalize=False)),
        ("reinforce_pp_baseline", ReinforcePlusPlus(baseline="group")),
        ("opmd_logsumexp", MirrorDescent(baseline="logsumexp")),
    ],
)
def test_an_option_file_is_its_component_with_a_difference(option, wanted):
    config = check(compose([*SMALL, f"advantage={option}", "algorithm.group_size=4"]))
    assert config.part("advantage") == wanted


def test_a_baseline_over_the_group_needs_a_group():
    """The whole lease is enough for REINFORCE++ without one."""
    with pytest.raises(ConfigError, match="group_size"):
        check(compose([*SMALL, "advantage=reinforce_pp_baseline", "algorithm.group_size=1"]))
    check(compose([*SMALL, "advantage=reinforce_pp", "algorithm.group_size=1"]))


RUNS = {
    "gae": ("critic=value_head", "critic.lr=0.1"),
    "remax": (),
    "clip_b": ("algorithm.denominator=kept",),
    "clip_v": ("algorithm.denominator=kept", "advantage.max_share=0.2", "advantage.mu=0.5"),
    "on_policy_distill": ("backend.teacher_seed=1",),
    "jsd_sampled": ("backend.teacher_seed=1",),
    "raft": ("loss=sft",),
    "step_wise_grpo": ("taskset=[guess]", "workflow=multi_turn", "environment=guess", "reward=[]"),
    "gigpo": ("taskset=[guess]", "workflow=multi_turn", "environment=guess", "reward=[]"),
}


@pytest.mark.parametrize("name", RUNS)
def test_what_it_needs_is_there_in_a_run(name, tmp_path):
    words = [f"advantage={name}", "tracker=[jsonl]", "steps=2", "groups_per_step=4", "algorithm.group_size=4"]
    words += ["sampling.max_response=2", "optim.lr=0.3", *RUNS[name]]
    if "taskset=[guess]" not in words:
        words += ["taskset=[]", "+taskset@tasksets.digits=trinity_core.testing.fakes:Digits"]
    start(config_for(*words), words, out=tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    assert len(steps) == 2
    assert any(line["weights/moved"] > 0 for line in steps)
