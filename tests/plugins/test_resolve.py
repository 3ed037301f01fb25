"""Names and import strings to classes, and what is said where there is none."""

import dataclasses
import sys
from pathlib import Path

import pytest

from trinity_core.builtins.homes import home
from trinity_core.errors import ComponentNotFound, ConfigError, PluginLoadError
from trinity_core.kinds import CONFIG_KINDS
from trinity_core.plugins import catalog, plugins, resolve


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "config"))
    yield
    sys.modules.pop("stand_ins", None)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in CONFIG_KINDS for name in catalog(kind)])
def test_every_registered_component_is_a_frozen_dataclass_of_its_kind(kind, name):
    cls = resolve(kind, name)
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen


def test_the_builtins_come_through_the_same_door_and_complain_of_nothing():
    info = plugins()[0]
    assert (info.name, info.distribution, info.status) == ("builtins", "trinity-core", "ok")
    assert [line for line in info.problems if not line.startswith("slow")] == []


@pytest.mark.parametrize(
    ("kind", "name", "error", "said"),
    [
        ("loss", "ppp", ComponentNotFound, "no loss named 'ppp'. Did you mean 'ppo'?"),
        ("reward", "spider", ComponentNotFound, "pip install trinity-plugin-sql"),
        ("environment", "alfworld", ComponentNotFound, "pip install trinity-plugin-alfworld"),
        ("engine", "vllm", ComponentNotFound, "pip install trinity-plugin-vllm"),
        ("backend", "verl", ComponentNotFound, "pip install trinity-plugin-verl"),
        ("runtime", "ray", ComponentNotFound, "pip install trinity-plugin-ray"),
        ("buffer", "redis", ComponentNotFound, "pip install trinity-plugin-redis"),
        ("loss", "no_such_module:X", PluginLoadError, "there is no module 'no_such_module'"),
        ("loss", "stand_ins:Cip", PluginLoadError, "module 'stand_ins' has no 'Cip'. Did you mean 'Clip'?"),
        ("loss", "stand_ins:Baseline", ConfigError, "is of kind advantage, not loss"),
        ("loss", "stand_ins:Inner", ConfigError, "does not subclass trinity_core.protocols.Loss"),
        ("loss", "stand_ins:HERE", ConfigError, "is not a class"),
        ("loss", "stand_ins:Thawed", ConfigError, "is not a frozen dataclass"),
        ("loss", "stand_ins:NoDataclass", ConfigError, "is not a frozen dataclass"),
        ("loss", "os:getcwd", ConfigError, "is not a class"),
        ("lss", "ppo", ConfigError, "no kind named 'lss'. Did you mean 'loss'?"),
    ],
)
def test_a_name_that_cannot_be_used_says_why_and_what_would_help(kind, name, error, said):
    with pytest.raises(error) as caught:
        resolve(kind, name)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("reward", ["math", "math_boxed", "accuracy", "math_format", "countdown"]),
        ("taskset", ["gsm8k", "countdown"]),
    ],
)
def test_the_home_of_the_first_plugin_is_known(kind, names):
    assert {home(kind, name) for name in names} == {"trinity-plugin-math-rewards"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import sys; sys.exit(1)", "calls sys.exit(1)"),
        ("raise ValueError('no')", "failed: ValueError: no"),
        ("import no_such_library", "needs 'no_such_library', which is not installed: pip install no_such_library"),
    ],
)
def test_a_component_module_that_cannot_be_imported_is_a_load_error(tmp_path, monkeypatch, source, said):
    (tmp_path / "faulty_component.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginLoadError) as caught:
        resolve("loss", "faulty_component:X")
    assert said in str(caught.value)
    sys.modules.pop("faulty_component", None)


def test_a_plugin_that_is_a_folder_of_this_checkout_is_installed_from_there(tmp_path, monkeypatch):
    from trinity_core.plugins import explain_missing

    monkeypatch.chdir(tmp_path)
    assert "pip install trinity-plugin-sql" in explain_missing("reward", "spider")
    (tmp_path / "plugins/sql").mkdir(parents=True)
    (tmp_path / "plugins/sql/pyproject.toml").touch()
    assert "pip install ./plugins/sql" in explain_missing("reward", "spider")
