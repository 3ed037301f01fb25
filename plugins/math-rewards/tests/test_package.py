"""The package as a plugin: light to load, options equal to defaults."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from trinity_math_rewards import plugin

from trinity_core.protocols import Reward, Taskset

PACKAGE = Path(plugin.__file__).parent
NAMES = [("reward", *item) for item in plugin.trinity_rewards().items()] + [
    ("taskset", *item) for item in plugin.trinity_tasksets().items()
]


def test_the_hook_module_is_short_and_loads_nothing_heavy():
    assert len((PACKAGE / "plugin.py").read_text().splitlines()) < 60
    code = "import trinity_math_rewards.plugin, sys; print(sorted({'torch', 'sympy', 'math_verify', 'datasets', 'numpy', 'hydra'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


@pytest.mark.parametrize(("kind", "name", "target"), NAMES)
def test_every_option_equals_its_component(kind, name, target):
    module, attribute = target.split(":")
    cls = getattr(importlib.import_module(module), attribute)
    assert (
        issubclass(cls, {"reward": Reward, "taskset": Taskset}[kind])
        and cls.__dataclass_params__.frozen
        and cls.__doc__
    )
    typing.get_type_hints(cls)
    text = (PACKAGE / "conf" / kind / f"{name}.yaml").read_text()
    assert text.splitlines()[:2] == [f"# @package {kind}s.{name}", f"name: {name}"]
    values = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    del values["name"]
    assert values == dataclasses.asdict(cls())


def test_no_option_file_without_a_component():
    files = {(path.parent.name, path.stem) for path in (PACKAGE / "conf").rglob("*.yaml")}
    assert files == {(kind, name) for kind, name, _ in NAMES}
