"""What plugins may rely on: the public signatures, and a plugin that uses all of them."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path

import numpy as np
import pytest

from trinity_core.kinds import CONFIG_KINDS
from trinity_core.protocols import LiveEngine
from trinity_core.types import Key, Request, Sampling

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
api = runpy.run_path(str(ROOT / "scripts/api.py"))


@pytest.fixture(autouse=True)
def first_release_plugin_is_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


@pytest.mark.parametrize("path", api["goldens"](), ids=lambda path: path.stem)
def test_public_signatures_are_the_golden_ones(path):
    assert path.exists(), f"{path.name} is missing: run make api, and review it as a contract"
    wanted, found = path.read_text().splitlines(), api["goldens"]()[path].splitlines()
    gone = [line for line in wanted if line not in found]
    new = [line for line in found if line not in wanted]
    assert wanted == found, f"the contract changed (make api writes it anew). Gone: {gone[:5]} New: {new[:5]}"


def test_a_golden_file_marks_required_methods_and_leaves_out_private_names():
    text = api["surface"]("trinity_core.protocols")
    assert "def pick(self, draws: Sequence[int]" in text
    assert "def observe(self, group: Group) -> None:\n        ...\n" in text, (
        "a method with a default body is not required"
    )
    assert "raise NotImplementedError" in text
    assert "class Command" not in text, "a kind without a component is provisional"
    assert "_registry" not in api["surface"]("trinity_core.kinds")


@pytest.mark.parametrize("kind", CONFIG_KINDS)
def test_a_component_of_the_first_release_still_resolves(kind):
    from first_release_plugin import EVERY

    from trinity_core.plugins import resolve

    assert resolve(kind, f"first_release_plugin:{EVERY[kind]}") is not None


def test_hooks_of_the_first_release_still_register():
    import first_release_plugin
    import pluggy

    from trinity_core import hookspecs

    manager = pluggy.PluginManager("trinity")
    manager.add_hookspecs(hookspecs)
    manager.register(first_release_plugin)
    manager.check_pending()
    assert manager.hook.trinity_rewards() == [{"first_reward": "first_release_plugin:FirstReward"}]


def test_methods_that_came_later_have_a_default_that_works():
    from first_release_plugin import FirstLiveEngine, FirstSelector, FirstTracker

    engine = FirstLiveEngine()
    request = Request(Key("train", 0, 0, 0), np.zeros(2, np.int32), Sampling(), 0)
    assert len(asyncio.run(LiveEngine.generate_wave(engine, [request, request]))) == 2
    engine.close()
    FirstTracker().finished({"status": "done"})
    assert FirstSelector().open(None) == FirstSelector()


def test_a_run_made_of_the_first_release_goes_through(tmp_path):
    from trinity_core.config.check import check
    from trinity_core.config.compose import compose
    from trinity_core.run import start

    at = "first_release_plugin:First"
    words = [
        "model=fake",
        "backend=fake",
        "engine=fake",
        f"taskset=[{at}Taskset]",
        f"selector={at}Selector",
        f"workflow={at}Workflow",
        f"reward=[{at}Reward]",
        f"operator=[{at}Operator]",
        f"sample_strategy={at}Strategy",
        f"advantage={at}Advantage",
        f"loss={at}Loss",
        f"correction=[{at}Correction]",
        f"runtime={at}Runtime",
        f"tracker=[{at}Tracker]",
        "steps=2",
        "groups_per_step=2",
        "algorithm.group_size=2",
        "sampling.max_response=4",
    ]
    summary = start(check(compose(words)), words, out=tmp_path / "run")
    assert summary["steps"] == 2, summary
