"""The kit fails what breaks a rule, passes what keeps them all, and never passes with nothing checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trinity_core.errors import TrinityError
from trinity_core.kinds import CONFIG_KINDS
from trinity_core.testing import kit
from trinity_core.testing.contracts import common, reward
from trinity_core.testing.rules import NotApplicable, require
from trinity_core.testing.subject import Subject, contract, instance

pytestmark = pytest.mark.slow  # whole processes, one after the other

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.fixture(autouse=True)
def samples_are_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def run_kit(name: str, *options: str, tmp_path: Path) -> tuple[int, str]:
    """The kit as a plugin author runs it, in a folder without tests."""
    env = os.environ | {"PYTHONPATH": str(HERE)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--trinity-conformance={name}", *options]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def sample(name: str, kind: str = "reward") -> Subject:
    return Subject(kind, f"samples:{name}")


# --- as it is typed ---------------------------------------------------------------------------------------------------


def test_an_import_string_is_checked_without_a_test_file_and_the_last_line_counts(tmp_path):
    code, text = run_kit("samples:Good", "--kind", "reward", tmp_path=tmp_path)
    rules = len(common.RULES) + len(reward.RULES)
    assert code == 0, text
    last = text.strip().splitlines()[-1]
    assert last.startswith(f"trinity conformance: 1 component, {rules} rules, {rules - 1} passed, 1 not applicable"), (
        last
    )
    assert "not applicable (1): it keeps no state" in text


def test_a_broken_component_fails_with_the_fix(tmp_path):
    code, text = run_kit("samples:Undocumented", "--kind", "reward", tmp_path=tmp_path)
    assert code == 1
    assert "no string under bonus. Say what it is" in text
    assert "failed" in text.strip().splitlines()[-1]


def test_an_unknown_name_is_a_failure_that_lists_what_is_installed(tmp_path):
    code, text = run_kit("nobody", tmp_path=tmp_path)
    assert code == 1
    assert "no such plugin. Installed: builtins" in text


def test_an_import_string_without_a_kind_is_a_failure(tmp_path):
    code, text = run_kit("samples:Good", tmp_path=tmp_path)
    assert code == 1
    assert "say what it is with --kind" in text


def test_pytest_starts_without_the_kit_or_anything_heavy(tmp_path):
    """The plugin is loaded by every pytest run on the machine."""
    (tmp_path / "test_start.py").write_text(
        "import sys\n"
        "def test_start():\n"
        "    ours = {name for name in sys.modules if name.startswith('trinity_core.')}\n"
        "    package = {'trinity_core.markers', 'trinity_core.openmp'}\n"
        "    assert ours == package | {'trinity_core.testing', 'trinity_core.testing.pytest_plugin'}\n"
        "    assert not {'torch', 'numpy', 'pydantic', 'transformers'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


# --- what a name stands for -------------------------------------------------------------------------------------------


def test_builtins_have_a_component_of_every_kind():
    assert {subject.kind for subject in kit.subjects("builtins")} == set(CONFIG_KINDS)


def test_a_distribution_is_as_good_as_a_plugin_name():
    assert kit.subjects("trinity-core") == kit.subjects("builtins")


def test_every_kind_has_a_contract_with_rules():
    assert not [kind for kind in CONFIG_KINDS if not getattr(contract(kind), "RULES", None)]


def test_every_rule_reads_as_what_a_component_does():
    for kind in CONFIG_KINDS:
        for words, rule in contract(kind).RULES.items():
            assert callable(rule)
            assert words[0].islower(), f"{kind}: {words!r}"


# --- rules of every component -----------------------------------------------------------------------------------------

BROKEN = [
    ("Undocumented", "class_is_documented", "no docstring of its own"),
    ("Undocumented", "fields_are_documented", "no string under bonus"),
    ("Thawed", "frozen_dataclass", "not a frozen dataclass"),
    ("Secretive", "no_field_holds_a_secret", "judge_token_env"),
    ("Slotted", "no_field_is_a_slot_key", "belongs to the kernel"),
    ("Unresolved", "annotations_resolve", "Decimal"),
]


@pytest.mark.parametrize(("name", "rule", "words"), BROKEN)
def test_what_breaks_a_common_rule_fails_it(name, rule, words, tmp_path):
    with pytest.raises((AssertionError, TrinityError), match=words):
        getattr(common, rule)(sample(name), tmp_path)


@pytest.mark.parametrize("rule", common.RULES)
def test_what_keeps_every_rule_passes_or_says_why_not(rule, tmp_path):
    if rule == "state round-trips":
        with pytest.raises(NotApplicable, match="it keeps no state"):
            common.RULES[rule](sample("Good"), tmp_path)
    else:
        common.RULES[rule](sample("Good"), tmp_path)


def test_required_fields_are_filled_by_example(tmp_path):
    made = instance(sample("Files", "taskset"), tmp_path)
    assert len(made) == 2
    common.composes_and_checks(sample("Files", "taskset"), tmp_path)


def test_required_fields_without_an_example_say_what_to_add(tmp_path):
    with pytest.raises(AssertionError, match="def example\\(cls, tmp: Path\\)"):
        instance(sample("NoExample", "taskset"), tmp_path)


def test_state_is_compared_after_a_round_trip(tmp_path):
    common.state_round_trips(sample("Connected", "selector"), tmp_path)
    common.opens_and_closes_twice(sample("Connected", "selector"), tmp_path)


def test_state_that_is_lost_is_seen(tmp_path, monkeypatch):
    import samples

    monkeypatch.setattr(samples.LiveConnected, "load_state_dict", lambda self, state: None)
    monkeypatch.setattr(samples.LiveConnected, "state_dict", lambda self: {"n": id(self)})
    with pytest.raises(AssertionError, match="differs from the state that was saved"):
        common.state_round_trips(sample("Connected", "selector"), tmp_path)


def test_state_that_is_no_plain_data_is_refused(tmp_path, monkeypatch):
    import samples

    monkeypatch.setattr(samples.LiveConnected, "state_dict", lambda self: {"deep": [self.connection]})
    with pytest.raises(AssertionError, match=r"state\.deep\[0\]: a Connection cannot be saved"):
        common.state_round_trips(sample("Connected", "selector"), tmp_path)


# --- rules of rewards -------------------------------------------------------------------------------------------------

BROKEN_REWARDS = [
    ("Moody", "is deterministic", "scored"),
    ("ZeroForNothing", "a missing gold answer is not a zero", "return Invalid"),
    ("Touchy", "does not change the attempt", "changed while it was scored"),
    ("Both", "defines __call__ or group", "It has both"),
    ("Silent", "scores at least one example", "no example was scored"),
    ("Fragile", "survives hostile text within its time limit", "IndexError"),
    ("Endless", "survives hostile text within its time limit", "takes longer"),
]


@pytest.mark.parametrize(("name", "rule", "words"), BROKEN_REWARDS)
def test_what_breaks_a_rule_of_rewards_fails_it(name, rule, words, tmp_path):
    with pytest.raises(AssertionError, match=words):
        kit.call_rule(reward.RULES[rule], instance(sample(name), tmp_path), tmp_path)


# --- the words --------------------------------------------------------------------------------------------------------


def test_require_fails_with_its_sentence():
    require(1, "never shown")
    with pytest.raises(AssertionError, match="the sentence"):
        require([], "the sentence")


def test_a_rule_may_ask_for_a_folder_and_may_be_async(tmp_path):
    seen = []

    async def rule(component, tmp):
        seen.append((component, tmp))

    kit.call_rule(rule, "component", tmp_path)
    kit.call_rule(seen.append, "alone", tmp_path)
    assert seen == [("component", tmp_path), "alone"]
