"""The command: what it loads, what it prints, how it fails."""

import json
import subprocess
import sys

import pytest

from trinity_core.commands.completion import candidates

HEAVY = ["torch", "transformers", "hydra", "omegaconf", "peft", "wandb"]
LOADED = (
    "import sys, contextlib, io; from trinity_core.cli import main\n"
    "with contextlib.redirect_stdout(io.StringIO()): main({words!r})\n"
    "import json; print(json.dumps([m for m in {heavy!r} if m in sys.modules]))"
)


@pytest.mark.parametrize(
    "words",
    [["--help"], [], ["version"], ["plugins"], ["plugins", "loss"], ["new", "--help"], ["_complete", "run", "loss="]],
)
def test_a_light_command_loads_nothing_heavy(trinity, words):
    done = trinity(code=LOADED.format(words=words, heavy=HEAVY))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_composing_and_checking_a_fake_run_loads_no_model_library(trinity):
    done = trinity(
        code=LOADED.format(words=["run", "recipe=fake", "--cfg", "job"], heavy=["transformers", "peft", "wandb"])
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_cfg_job_prints_yaml_and_nothing_else(trinity):
    import yaml

    done = trinity("run", "recipe=fake", "seed=7", "--cfg", "job")
    assert (done.returncode, done.stderr) == (0, "")
    assert yaml.safe_load(done.stdout)["seed"] == 7


def test_cfg_job_checks_what_it_prints(trinity):
    done = trinity("run", "recipe=fake", "sead=7", "--cfg", "job")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("trinity run: sead: a run has no such option. Did you mean 'seed'?")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rn"], "trinity rn: no such command. Did you mean 'run'?"),
        (["recipe=fake", "seed=1"], "Words come after one: trinity run recipe=fake seed=1"),
        (["train", "out=R"], "It is a mode of a run: trinity run mode=train out=R"),
        (["run", "--out=foo"], "--out=foo: words have no dashes: out=foo"),
        (["run", "recipe=fake", "steps", "3"], "steps: a word has the form key=value: write steps=3"),
        (["run", "recipe=fake", "model.lora={rank:", "16}"], "Quote words with braces, brackets or spaces"),
        (["run", "--config-dir=x"], "--config-dir=x: no such option"),
        (["run", "recipe=fake", "--cfg", "hydra"], "only `--cfg job` exists"),
        (["plugins", "lss"], "no kind named 'lss'. Did you mean 'loss'?"),
        (["plugins", "loss", "ppp"], "Did you mean 'ppo'?"),
        (["audit"], "expected RUN, got 0"),
        (["audit", "nowhere"], "nowhere: no such folder"),
        (["digest", "."], ".: not the folder of a run"),
        (["export", "x"], "expected RUN DIR, got 1"),
        (["new", "x"], "a NAME and a --kind are needed"),
        (["new", "x", "--kind", "rward"], "Did you mean 'reward'?"),
        (["new", "Bad Name", "--kind", "reward"], "is no name for a package"),
        (["--completion", "tcsh"], "shells: bash, zsh"),
        (["run", "recipe=fake", "resume=nowhere"], "resume=nowhere: not a run folder"),
    ],
)
def test_a_mistake_is_one_message_and_a_code_of_its_own(trinity, words, said):
    done = trinity(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_made_is_one_message(trinity, tmp_path):
    (tmp_path / "file").write_text("")
    done = trinity("run", "-m", "recipe=fake", "seed=0,1", f"out={tmp_path}/file/sweep")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"{tmp_path}/file/sweep: Not a directory. Check that it exists" in done.stderr


def test_a_slip_at_the_root_is_answered_before_any_component_is_loaded(trinity):
    code = LOADED.format(words=["run", "recipe=quickstart", "sead=7"], heavy=["torch", "transformers"])
    done = trinity(code=code)
    assert "Did you mean 'seed'?" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_debug_shows_where(trinity):
    assert "Traceback" in trinity("run", "recipe=fake", "sead=7", TRINITY_DEBUG="1").stderr


def test_help_names_every_command_and_run_help_every_group(trinity):
    from trinity_core.cli import COMMANDS
    from trinity_core.kinds import CONFIG_KINDS

    shown = trinity("--help").stdout
    assert all(f"\n  {word} " in shown for word in COMMANDS)
    shown = trinity("run", "--help").stdout
    assert all(f"\n  {group} " in shown for group in [*CONFIG_KINDS, "recipe", "algorithm", "model"])
    assert "quickstart" in shown


def test_plugins_shows_a_components_options_and_how_to_select_it(trinity):
    shown = trinity("plugins", "loss", "ppo").stdout
    assert "clip_low: float = 0.2" in shown
    assert "select it: loss=ppo" in shown
    assert "select it: reward=[exact]" in trinity("plugins", "reward", "exact").stdout


def test_doctor_reports_and_finds_nothing_wrong_or_says_so_in_its_code(trinity):
    done = trinity("doctor")
    assert done.returncode == ("\n  ! " in done.stdout)
    for section in ("system:", "versions:", "plugins:", "torch:", "models:", "services:"):
        assert section in done.stdout


def test_doctor_fails_for_a_service_that_does_not_answer(trinity):
    done = trinity("doctor", TRINITY_TEST_DB="postgresql://127.0.0.1:1/x")
    assert done.returncode == 1
    assert "! TRINITY_TEST_DB: 127.0.0.1 does not answer" in done.stdout


def test_doctor_names_a_disabled_plugin_that_does_not_exist(trinity):
    done = trinity("doctor", TRINITY_DISABLE_PLUGINS="no-such")
    assert done.returncode == 1
    assert "names 'no-such', and no such plugin is installed" in done.stdout


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ([""], "run"),
        (["run", "lo"], "loss="),
        (["run", "loss=p"], "loss=ppo"),
        (["run", "recipe="], "recipe=gsm8k/explorer"),
        (["run", "optim"], "optim.lr="),
        (["run", "+reward@rewards.x="], "+reward@rewards.x=exact"),
        (["plugins", ""], "loss"),
        (["plugins", "loss", ""], "ppo"),
        (["new", "x", ""], "--kind"),
    ],
)
def test_completion_offers(words, some):
    assert some in candidates(words)


@pytest.mark.parametrize(
    ("words", "some", "other"),
    [
        (["backend."], "backend.share_prefix=", "backend.states="),
        (["recipe=fake", "backend."], "backend.states=", "backend.share_prefix="),
        (["recipe=fake", "engine=hf", "engine."], "engine.fused=", "engine.latency_s="),
        (["'reward=[exact,overlong]'", "rewards."], "rewards.overlong.buffer=", "rewards.math.weight="),
        (["rewards."], "rewards.exact.weight=", "rewards.overlong.weight="),
        (["+taskset@eval.tasksets.mine=numbers", "eval.tasksets."], "eval.tasksets.mine.kind=", "eval.every="),
        (["loss=stand_in:Mine", "loss."], "loss.scale=", "loss.clip_low="),
        (["seed=", "+loss."], "+loss.clip_low=", "+loss.scale="),
        (["no=such=word", "loss."], "loss.clip_low=", "loss.scale="),
    ],
)
def test_values_of_the_part_that_is_chosen_are_completed(words, some, other, tmp_path, monkeypatch):
    (tmp_path / "stand_in.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = candidates(["run", *words])
    assert some in found and other not in found


MINE = """
from dataclasses import dataclass
from trinity_core.protocols import Loss

@dataclass(frozen=True)
class Mine(Loss):
    \"\"\"A loss of one's own.\"\"\"

    scale: float = 1.0
"""


def test_plugins_finds_a_class_where_a_run_finds_it(trinity, tmp_path):
    """A file in this folder, or in the project's from a folder below it."""
    (tmp_path / "stand_in.py").write_text(MINE)
    command = [sys.executable, "-P", "-m", "trinity_core.cli", "plugins", "loss", "stand_in:Mine"]
    done = subprocess.run(command, text=True, capture_output=True, cwd=tmp_path)
    assert "A loss of one's own." in done.stdout and "scale: float = 1.0" in done.stdout, done.stderr


def test_a_ctrl_c_after_an_interruption_ends_quietly(trinity):
    """The first one interrupts a run; the next comes while the interpreter closes."""
    code = (
        "import atexit, os, signal, sys, threading, time\n"
        "from trinity_core.cli import main\n"
        "press = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        "atexit.register(lambda: (press(), time.sleep(5)))\n"
        "threading.Timer(4, press).start()\n"
        "sys.argv = ['trinity', 'run', 'recipe=fake', 'steps=1000000']\n"
        "sys.exit(main())"
    )
    done = trinity(code=code)
    assert done.returncode == 130 and "interrupted" in done.stderr and "Traceback" not in done.stderr


def test_the_bash_script_is_valid_and_asks_trinity(trinity, tmp_path):
    script = trinity("--completion", "bash").stdout
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "trinity _complete" in script
