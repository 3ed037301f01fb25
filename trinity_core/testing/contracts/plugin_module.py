"""Rules of the module that registers components: every command loads it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points

from trinity_core.testing.rules import require

HEAVY = ("torch", "transformers", "peft", "vllm", "verl", "ray", "wandb", "tensorboard", "pandas", "datasets")
"""What a plugin module must not import."""
LOAD_S = 0.2


def plugin_module_is_light(plugin: str) -> None:
    """Every command loads ``plugin.py``: it imports no heavy library and takes under 0.2 s."""
    module = _module_of(plugin)
    code = (
        "import json, sys, time, trinity_core.hookspecs, trinity_core.kinds\n"
        f"start = time.perf_counter(); import {module}; seconds = time.perf_counter() - start\n"
        f"print(json.dumps([seconds, [m for m in {HEAVY!r} if m in sys.modules]]))"
    )
    best = float("inf")
    for _ in range(5):  # the fastest of a few: a busy machine is not the plugin's fault
        out = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
        require(out.returncode == 0, f"importing {module} failed: {out.stderr.strip()[-500:]}")
        seconds, heavy = json.loads(out.stdout.strip().splitlines()[-1])
        require(
            not heavy,
            f"{module} imports {', '.join(heavy)}: return import strings and let the component's module import it",
        )
        best = min(best, seconds)
        if best < LOAD_S:
            return
    require(False, f"{module} takes {best:.2f} s to import; {LOAD_S} s is the limit, since every command pays it")


def plugin_prints_nothing(plugin: str) -> None:
    """What a plugin prints while loading would end up inside ``--cfg job`` and break pipes."""
    out = subprocess.run([sys.executable, "-c", f"import {_module_of(plugin)}"], text=True, capture_output=True)
    require(not out.stdout, f"{_module_of(plugin)} prints {out.stdout[:80]!r} when imported")


def plugin_loads_without_complaint(plugin: str) -> None:
    """Discovery has nothing to say about it."""
    from trinity_core.plugins import plugins

    info = next(info for info in plugins() if info.name == plugin)
    complaints = [problem for problem in info.problems if "slow" not in problem]
    require(not complaints, "; ".join(complaints))


def _module_of(plugin: str) -> str:
    """The module that the plugin's entry point names; the built-ins have none."""
    named = {point.name: point.module for point in entry_points(group="trinity")}
    return named.get(plugin, "trinity_core.builtins.plugin")


RULES = {
    "plugin module is light": plugin_module_is_light,
    "plugin module prints nothing": plugin_prints_nothing,
    "plugin loads without complaint": plugin_loads_without_complaint,
}
