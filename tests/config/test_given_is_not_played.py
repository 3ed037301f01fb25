"""Options that count over what the policy says itself, where nothing is said; and what is given beside what is played."""

from __future__ import annotations

import pytest

from trinity_core.algo import AdvantageBatch
from trinity_core.builtins.advantages.raft import RewardRanked
from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.errors import ConfigError

FAKE = ("model=fake", "engine=fake", "backend=fake", "tracker=[]", "taskset=[numbers]")
SHOWN = "tasksets.numbers.demonstrations=true"
PAIRS = "tasksets.numbers.preferences=true"
BESIDE = "+taskset@tasksets.expert=numbers tasksets.expert.demonstrations=true"
REFUSED = [
    (f"algorithm=sft {SHOWN} algorithm.kl.coef=0.1", "algorithm.kl.coef: it is over the policy's own words", "algorithm.kl.coef=0"),
    (f"algorithm=sft {SHOWN} algorithm.entropy_coef=0.1", "algorithm.entropy_coef: it is over the policy's own words", "algorithm.entropy_coef=0"),
    (f"algorithm=dpo {PAIRS} algorithm.kl.coef=0.1 algorithm.kl.target=0.1", "it would be 0 in every step", "algorithm.kl.coef=0"),
    (f"algorithm=grpo {SHOWN}", "advantage: 'grpo' gives credit to what the policy said", "algorithm=sft"),
    (f"algorithm=reinforce {PAIRS}", "loss 'ppo' would learn nothing", "algorithm=dpo"),
    (f"algorithm=grpo {BESIDE}", "tasksets.expert brings its attempts along: loss 'ppo' would learn nothing from them", "algorithm=mix"),
    (f"algorithm=sft {BESIDE}", "imitates what is played of tasksets.numbers too, failures as well", "advantage=raft"),
    ("operator=[best_worst]", "'best_worst' leaves a chosen and a rejected attempt of each group, which get no credit", "operator=[]"),
    ("algorithm.kl.coef=-0.1", "algorithm.kl.coef: -0.1 would push the policy away from the reference", "algorithm.kl.coef=0.1"),
    ("algorithm=reinforce algorithm.group_size=1 operator=[dynamic_sampling]", "no group can have a spread", "algorithm.group_size=8"),
    ("groups_per_step=2 optim.mini_batches=4", "optim.mini_batches: an update has whole groups", "optim.mini_batches=2"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message", "fix"), REFUSED)
def test_what_would_silently_count_for_nothing_is_refused_and_the_line_helps(words, message, fix):
    typed = [*FAKE, *words.split()]
    with pytest.raises(ConfigError) as caught:
        check(compose(typed))
    assert message in str(caught.value) and f"{fix}" in str(caught.value)
    path = fix.partition("=")[0]
    kept = [
        word
        for word in typed
        if word.partition("=")[0] != path and not (path == "algorithm.kl.coef" and "target" in word)
    ]
    check(compose([*kept, fix]))


FINE = [
    f"algorithm=sft {SHOWN}",
    f"algorithm=dpo {PAIRS}",
    f"algorithm=mix {BESIDE} algorithm.kl.coef=0.1 algorithm.entropy_coef=0.1",
    f"algorithm=raft {BESIDE}",
    "algorithm=dpo operator=[best_worst] algorithm.kl.coef=0.1",
    "groups_per_step=4 optim.mini_batches=4",
    "groups_per_step=2 optim.mini_batches=4 operator=[dynamic_sampling]",
    "algorithm=reinforce algorithm.group_size=1 operator=[dynamic_sampling] mode=bench +taskset@eval.tasksets.held=numbers",
]


@pytest.mark.parametrize("words", FINE)
def test_what_counts_for_something_is_not_refused(words):
    check(compose([*FAKE, *words.split()]))


def test_what_experts_said_is_imitated_beside_successes():
    """One success, one failure, one demonstration, of one token each: the failure alone leaves."""
    batch = AdvantageBatch.of([1, 0, None], role_A=["sample", "sample", "expert"])
    credit = RewardRanked()(batch)
    assert credit.keep_N.tolist() == [True, False, True] and credit.metrics["kept"] == 0.5
