"""Bad input at every depth: one message, with the full path, the nearest spelling or the fix."""

import dataclasses

import pytest
from omegaconf import OmegaConf
from stand_ins import WORDS

from trinity_core.config.check import check, to_plain
from trinity_core.config.compose import compose
from trinity_core.config.schema import RewardSlot, RunConfig, Schedule
from trinity_core.errors import ConfigError, TrinityError

TAG = "+reward@rewards.tag=stand_ins:Regex"
HELD = "+taskset@eval.tasksets.held=stand_ins:Tasks eval.tasksets.held.path=x"
JUDGE = "+engine@models.judge.engine=stand_ins:Engine"


def checked(words: str = "") -> RunConfig:
    return check(compose([*WORDS, *words.split()]))


BAD = {
    # unknown keys, at every depth
    "sead=1": "sead: a run has no such option. Did you mean 'seed'?",
    "los=ppo": "los: a run has no such option. Did you mean 'loss'?",
    "sampling.temprature=1": "sampling.temprature: sampling has no such option. Did you mean 'temperature'?",
    "algorithm.kl={coef:0.1,estimatr:k3}": "algorithm.kl.estimatr: algorithm.kl has no such option. Did you mean 'estimator'?",
    "loss.clip_lw=1": "loss.clip_lw: 'stand_ins:Clip' has no such option. Did you mean 'clip_low'? Options: clip_low, clip_high",
    "loss.clip_high={start:1,end:2,stps:3}": "loss.clip_high.stps: loss.clip_high has no such option. Did you mean 'steps'?",
    "rewards.regex.patern=x": "rewards.regex.patern: 'stand_ins:Regex' has no such option. Did you mean 'pattern'? Options: pattern, value, weight, gate, clip",
    f"{TAG} rewards.tag.patern=x": "rewards.tag.patern: 'stand_ins:Regex' has no such option. Did you mean 'pattern'?",
    "tasksets.tasks.inner.dept=1": "tasksets.tasks.inner.dept: tasksets.tasks.inner has no such option. Did you mean 'depth'?",
    f"{HELD} eval.tasksets.held.splt=test": "eval.tasksets.held.splt: 'stand_ins:Tasks' has no such option. Did you mean 'split'?",
    "eval.evry=3": "eval.evry: eval has no such option. Did you mean 'every'?",
    "trackers.watch.projct=red": "trackers.watch.projct: 'stand_ins:Watch' has no such option. Did you mean 'project'?",
    f"{JUDGE} models.judge.engine.tensor_paralel=2": "models.judge.engine.tensor_paralel: 'stand_ins:Engine' has no such option. Did you mean 'tensor_parallel'?",
    f"{JUDGE} models.judge.engin=2": "models.judge.engin: the auxiliary model 'judge' has no such option. Did you mean 'engine'?",
    "+models.judge.colour=2": "models.judge.colour: the auxiliary model 'judge' has no such option",
    # values that no option fills
    "sampling.stop=['']": "sampling.stop: an empty string is in every text",
    "model.path=''": "model.path: empty. Give a model folder",
    "trackers.wandb.project=x": "trackers.wandb: values for a tracker that no option fills. Slots filled: watch. Select one (+tracker@trackers.wandb=NAME) or drop them (~trackers.wandb)",
    f"{TAG} rewards.tga.pattern=x": "rewards.tga: values for a reward that no option fills. Did you mean rewards.tag?",
    f"{TAG} rewards.Tag.pattern=x": "rewards.Tag: values for a reward that no option fills. Did you mean rewards.tag?",
    "lr=0.1": "lr: a run has no such option at its root. Did you mean optim.lr?",
    "group_size=4": "Did you mean algorithm.group_size?",
    "max_response=4": "Did you mean sampling.max_response?",
    "temprature=4": "Did you mean sampling.temperature or eval.temperature?",
    "environment.depth=1": "environment: values for an environment that no option fills",
    "rewards.regex=3": "rewards.regex: expected a reward, got 3",
    "rewards=3": "rewards: expected a map from slot to component, got 3",
    "+reward.math.weight=1": "reward: rewards stand under rewards.<slot>",
    # wrong types
    "steps=x": "steps: expected whole number, got 'x'",
    "steps=1.5": "steps: expected whole number, got 1.5",
    "steps=true": "steps: expected whole number, got True",
    "optim.lr=true": "optim.lr: expected number, got True",
    "eval.before=1": "eval.before: expected true or false, got 1",
    "mode=serve": "mode: expected one of both, explore, train, bench, got 'serve'",
    "algorithm.reduction=token_men": "got 'token_men'. Did you mean 'token_mean'?",
    f"{HELD} eval.tasksets.held.split=tst": "eval.tasksets.held.split: expected one of train, test, got 'tst'. Did you mean 'test'?",
    "tasksets.tasks.inner.depth=deep": "tasksets.tasks.inner.depth: expected whole number, got 'deep'",
    "tasksets.tasks.kinds=a": "tasksets.tasks.kinds: expected list of text, got 'a'",
    "tasksets.tasks.kinds=[a,[b]]": "tasksets.tasks.kinds.1: expected list of text",
    "rewards.regex.weight=x": "rewards.regex.weight: expected number, got 'x'",
    "rewards.regex.clip=[0]": "rewards.regex.clip.1: expected list of 2: number, number or null",
    "loss.clip_high=abc": "loss.clip_high: expected number or Schedule(start, end, steps, shape), got 'abc'",
    "loss=stand_ins:Checked loss.low=-1": "loss: 'stand_ins:Checked' refuses these values: low must not be negative",
    # missing values, variables, references
    "tasksets.tasks.path=???": "tasksets.tasks.path: a value is needed: tasksets.tasks.path=…",
    "tasksets.tasks.path=${oc.env:TRINITY_TEST_UNSET}": "tasksets.tasks.path: environment variable TRINITY_TEST_UNSET is not set",
    "tasksets.tasks.path=${no.such}": "tasksets.tasks.path: Interpolation key 'no.such' not found",
    # parts
    "loss=null": "loss: a run needs one. Options:",
    "loss=stand_ins:Baseline": "is of kind advantage, not loss",
    "loss.name=stand_ins:Plain": "loss.name: a component is selected as an option, so that no value of another stays behind: loss=stand_ins:Plain",
    "rewards.regex.name=exact": "rewards.regex.name: a component is selected as an option, so that no value of another stays behind: reward@rewards.regex=exact",
    "engine=null": "engine: mode=both plays, and needs one",
    "workflow=null": "workflow: mode=both plays, and needs one",
    "taskset=[] ~tasksets.tasks": "tasksets: mode=both plays, and needs a taskset",
    "reward=[]": "rewards: none is selected",
    "tasksets.tasks.weight=0": "tasksets: every weight is 0",
    "tasksets.tasks.weight=-1": "tasksets.tasks.weight: a share of the draws cannot be negative",
    # combinations
    "algorithm.group_size=1": "algorithm.group_size: advantage 'stand_ins:Baseline' compares the attempts of a group",
    "algorithm.group_size=0": "algorithm.group_size: must be at least 1, got 0",
    "loss=stand_ins:Pairs algorithm.reduction=token_mean": "algorithm.reduction: loss 'stand_ins:Pairs' gives one value per pair",
    "loss=stand_ins:Pairs operator=[stand_ins:Judge] algorithm.reduction=null backend=stand_ins:Poor": "backend: loss 'stand_ins:Pairs' needs ref_logp, which 'stand_ins:Poor' does not give",
    "algorithm.kl.coef=0.1 backend=stand_ins:Poor": "Write backend=local, or algorithm.kl.coef=0",
    "algorithm.entropy_coef=0.1 backend=stand_ins:Poor": "Write backend=local, or algorithm.entropy_coef=0",
    "advantage=stand_ins:Valued": "critic: advantage 'stand_ins:Valued' needs value, which a critic gives. Write critic=value_head",
    "algorithm.kl.coef=0.1 algorithm.kl.estimator=k1": "k1 as a term of the loss has no gradient on-policy",
    "sync.offset=1": "nothing corrects for it. Write one of\n  correction=[truncated_is]\n  sync.uncorrected=true",
    "sync.interval=2": "nothing corrects for it",
    "sync.mode=async sync.max_staleness=2": "nothing corrects for it",
    "sync.max_staleness=2": "sync.max_staleness: only an asynchronous run has a staleness bound",
    "sync.mode=async sync.offset=1": "these order a run",
    "buffer=stand_ins:Memory mode=train": "buffer: 'stand_ins:Memory' lives in one process, and mode=train",
    "buffer=stand_ins:Memory mode=explore": "Write buffer=sql, or mode=both",
    "join=here": "join: an explorer joins a trainer's run; this is mode=both",
    "engine=stand_ins:Picky sampling.top_k=3": "engine: sampling.top_k is not known here. Write sampling.top_k=0",
    "engine=stand_ins:Picky": "engine: 'stand_ins:Picky' loads adapter, and backend 'stand_ins:Rich' publishes tensors",
    "rewards.regex.gate=regex": "rewards.regex.gate: a reward cannot gate itself",
    f"{TAG} rewards.tag.gate=regx": "rewards.tag.gate: no reward has the slot 'regx'. Did you mean 'regex'?",
    "rewards.regex.clip=[1,0]": "rewards.regex.clip: the lowest value comes first",
    "loss.clip_high={start:1,end:2,steps:0}": "loss.clip_high.steps: a schedule takes at least one step",
    "sampling.top_p=1.5": "sampling.top_p: must be at most 1, got 1.5",
    "sampling.temperature=-1": "sampling.temperature: must be at least 0",
    "sampling.temperature=1e-46": "sampling.temperature: must be 0 (the likeliest token) or from 1e-30 to 1e+30",
    "eval.temperature=1e-40": "got 1e-40. Write eval.temperature=0",
    "sampling.temperature=1e39": "Write sampling.temperature=1",
    f"seed={2**64}": "seed: must be less than 2**64, a seed has 64 bits; got 18446744073709551616. Write seed=0",
    "groups_per_step=0": "groups_per_step: must be at least 1",
    "optim.lr=nan": "optim.lr: must be a finite number",
    "algorithm.kl.coef=inf": "algorithm.kl.coef: must be a finite number",
    "loss.clip_low=nan": "loss.clip_low: must be a finite number",
    "optim.betas=[2,3]": "optim.betas: both must be at least 0 and less than 1",
    "model.lora={rank:4,alpha:0}": "model.lora.alpha: must be more than 0, got 0",
    "advantage=stand_ins:Valued critic=value_head critic.warmup_steps=-1": "critic.warmup_steps: must be at least 0",
    "advantage=stand_ins:Valued critic=value_head critic.clip=0": "critic.clip: must be more than 0",
    "trainer.max_uses=2": "with trainer.max_uses=2 the trainer learns from older policies",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_refused_with_its_path_and_the_fix(words):
    with pytest.raises(TrinityError) as caught:
        checked(words)
    assert BAD[words] in str(caught.value)
    assert caught.value.exit_code == 2


FINE = [
    "",
    "steps=1e3",
    f"seed={2**64 - 1} sampling.temperature=1e-30",
    f"{TAG} rewards.tag.gate=regex rewards.tag.weight=-0.2 rewards.tag.clip=[0,1]",
    f"{HELD} eval.tasksets.held.split=test",
    f"{JUDGE} models.judge.engine.args={{enforce_eager:true}}",
    "sync.offset=1 correction=[stand_ins:Truncate]",
    "sync.mode=async sync.max_staleness=2 sync.uncorrected=true",
    "advantage=stand_ins:Valued critic=value_head",
    "loss=stand_ins:Pairs operator=[stand_ins:Judge] algorithm.reduction=null",
    "algorithm.kl.coef=0.1 algorithm.kl.estimator=k1 algorithm.kl.where=reward",
    "mode=train workflow=null engine=null",
    "operator=[stand_ins:Keep] operators.keep.share=0.3",
    "model.lora={rank:4}",
    "environment=null critic=null",
    "loss.clip_high={start:0.1,end:0.2,steps:4}",
]


@pytest.mark.parametrize("words", FINE)
def test_a_checked_config_as_plain_data_checks_to_itself(words):
    config = checked(words)
    again = check(OmegaConf.create(to_plain(config)))
    assert again == config


def test_plain_data_has_every_field_of_every_component():
    plain = to_plain(checked(f"{TAG} {HELD}"))
    assert plain["rewards"]["tag"] == {
        "name": "stand_ins:Regex", "weight": 1.0, "gate": None, "clip": None, "pattern": ".*", "value": 1.0,
    }  # fmt: skip
    assert plain["eval"]["tasksets"]["held"] == {
        "name": "stand_ins:Tasks", "weight": 1.0, "path": "x", "split": "train", "kinds": ["a", "b"], "inner": {"depth": 1},
    }  # fmt: skip
    root = {field.name for field in dataclasses.fields(RunConfig)} - {"parts"}
    assert root < plain.keys()


def test_values_arrive_as_the_dataclass_says():
    config = checked("rewards.regex.clip=[0,1] loss.clip_high={start:0.1,end:0.2,steps:4} steps=1e2")
    assert config.part("tasksets.tasks").kinds == ("a", "b")
    assert config.part("loss").clip_high == Schedule(0.1, 0.2, 4)
    assert config.parts["rewards.regex"].slot == RewardSlot(clip=(0.0, 1.0))
    assert config.steps == 100
    assert type(config.steps) is int


def test_a_component_may_not_take_a_key_of_the_slot(tmp_path, monkeypatch):
    (tmp_path / "greedy_part.py").write_text(
        "from dataclasses import dataclass\nfrom trinity_core.protocols import Reward\n"
        "@dataclass(frozen=True)\nclass Heavy(Reward):\n    weight: float = 2.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TrinityError, match="has a field 'weight', a key that belongs to the kernel"):
        checked("reward=[greedy_part:Heavy]")


def test_an_annotation_that_does_not_resolve_is_said(tmp_path, monkeypatch):
    (tmp_path / "vague_part.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom trinity_core.protocols import Loss\n"
        "@dataclass(frozen=True)\nclass Vague(Loss):\n    path: Path = None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TrinityError, match="name 'Path' is not defined"):
        checked("loss=vague_part:Vague")


SECRETS = [
    ("trackers.watch.api_key=CANARY7", "trackers.watch.api_key"),
    ("trackers.watch.API_KEY=CANARY7", "trackers.watch.API_KEY"),
    ("+engine.args.hf_token=CANARY7", "engine.args.hf_token"),
    ("+engine.args.password=CANARY7", "engine.args.password"),
    ("+engine.args.deep={client_secret:CANARY7}", "engine.args.deep.client_secret"),
    ("buffer.url=postgresql://me:CANARY7@host/db", "buffer.url"),
    ("+engine.args.urls=[http://me:CANARY7@host/]", "engine.args.urls.0"),
    ("buffer.url=postgresql://me:${oc.env:TRINITY_TEST_CANARY}@host/db", "buffer.url"),
]


@pytest.mark.parametrize(("word", "path"), SECRETS)
def test_a_secret_is_refused_with_its_path_and_never_repeated(word, path, monkeypatch):
    monkeypatch.setenv("TRINITY_TEST_CANARY", "CANARY7")
    with pytest.raises(ConfigError) as caught:
        checked(word)
    assert str(caught.value).startswith(f"{path}:")
    assert "environment variable" in str(caught.value)
    assert "CANARY7" not in str(caught.value)


@pytest.mark.parametrize(
    "word", ["+engine.args.eos_token=x", "buffer.url=postgresql://host/db", "+engine.args.api_key_env=OPENAI_API_KEY"]
)
def test_what_only_looks_like_a_secret_is_fine(word):
    checked(word)
