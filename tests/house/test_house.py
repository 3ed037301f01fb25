"""The rules of the house, on the source itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
KERNEL = ROOT / "trinity_core"
LONGEST = 320
LONGEST_LIST = 400
"""A contract is one list of rules: it may be longer."""
ONE_PAGE = {"trinity_core/protocols.py", "trinity_core/types.py", "trinity_core/config/schema.py"}
"""The public surface is read as one page: its length is docstrings."""
HEAVY = {"torch", "transformers", "peft", "ray", "wandb", "tensorboard", "vllm", "datasets", "pandas"}
MAY_BE_HEAVY = ("trinity_core/algo/", "trinity_core/builtins/", "trinity_core/testing/")

modules = sorted(path for path in KERNEL.rglob("*.py") if "template" not in path.parts)
every_module = pytest.mark.parametrize("path", modules, ids=lambda path: str(path.relative_to(ROOT)))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.AST, *, top: bool) -> Iterator[str]:
    """Modules that are imported: when the module loads (``top``), or anywhere in it. ``TYPE_CHECKING`` blocks never run."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if top and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imports(node, top=top)


def roots(path: Path, *, top: bool) -> set[str]:
    return {name.split(".")[0] for name in imports(ast.parse(path.read_text()), top=top)}


@every_module
def test_a_module_holds_one_idea(path):
    lines = len(path.read_text().splitlines())
    longest = LONGEST_LIST if "testing/contracts/" in name_of(path) else LONGEST
    assert name_of(path) in ONE_PAGE or lines <= longest, f"{lines} lines: it holds two ideas"


@every_module
def test_the_kernel_loads_nothing_heavy(path):
    if name_of(path).startswith(MAY_BE_HEAVY):
        heavy = roots(path, top=True) & (HEAVY - {"torch", "transformers", "peft"})
    else:
        heavy = roots(path, top=True) & HEAVY
    assert not heavy, f"{name_of(path)} imports {heavy} when it loads: import inside the function that needs it"


@every_module
def test_advantages_are_numpy(path):
    if "builtins/advantages" in name_of(path):
        assert "torch" not in roots(path, top=False)


@every_module
def test_the_kernel_knows_no_component(path):
    """Names lead to components through the catalog; an import would make one of them special."""
    if name_of(path).startswith(("trinity_core/builtins/", "trinity_core/testing/")):
        return
    named = {
        name for name in imports(ast.parse(path.read_text()), top=False) if name.startswith("trinity_core.builtins")
    }
    assert not named, f"{name_of(path)} imports {named}"


@every_module
def test_the_kernel_knows_no_plugin(path):
    foreign = {root for root in roots(path, top=False) if root.startswith("trinity_") and root != "trinity_core"}
    assert not foreign


@every_module
def test_no_error_is_swallowed(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"{name_of(path)}:{node.lineno}: a bare except"
            assert not all(isinstance(line, ast.Pass) for line in node.body), (
                f"{name_of(path)}:{node.lineno}: except … pass"
            )


@every_module
def test_every_module_says_what_it_is(path):
    text = path.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{name_of(path)} has no docstring"


@pytest.mark.parametrize("plugin", sorted((ROOT / "plugins").glob("*")), ids=lambda plugin: plugin.name)
def test_plugins_never_import_each_other(plugin):
    own = {path.name for path in (plugin / "src").iterdir()}
    for path in (plugin / "src").rglob("*.py"):
        foreign = {root for root in roots(path, top=False) if root.startswith("trinity_")} - own - {"trinity_core"}
        assert not foreign, f"{name_of(path)} imports {foreign}"


@pytest.mark.parametrize("plugin", sorted((ROOT / "plugins").glob("*")), ids=lambda plugin: plugin.name)
def test_plugins_use_public_names_only(plugin):
    """``hookimpl``, ``types``, ``protocols``, ``errors``, ``algo``, ``testing``: what golden files hold still."""
    public = (
        "trinity_core.types",
        "trinity_core.protocols",
        "trinity_core.errors",
        "trinity_core.algo",
        "trinity_core.testing",
    )
    for path in (plugin / "src").rglob("*.py"):
        for name in imports(ast.parse(path.read_text()), top=False):
            if name.startswith("trinity_core."):
                assert name.startswith((*public, "trinity_core.hookimpl")), (
                    f"{name_of(path)} imports {name}, which may change"
                )


@pytest.mark.parametrize("plugin", sorted((ROOT / "plugins").glob("*")), ids=lambda plugin: plugin.name)
def test_a_hook_module_is_short(plugin):
    for path in (plugin / "src").glob("*/plugin.py"):
        assert len(path.read_text().splitlines()) < 60


def test_a_regression_test_names_its_row():
    """``SCL-01`` in the docstring of the test, its class or its file says which known failure it keeps away."""
    unnamed = []
    for path in sorted((ROOT / "tests/regressions").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        shared = ast.get_docstring(tree) or ""
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                words = f"{shared if len(re.findall(ROW, shared)) == 1 else ''} {ast.get_docstring(node) or ''}"
                if not re.search(ROW, words):
                    unnamed.append(f"{path.name}::{node.name}")
    assert not unnamed


ROW = r"\b[A-Z]{2,4}-\d{2}\b"


def test_the_public_surface_loads_without_torch():
    import subprocess
    import sys

    names = ("kinds", "markers", "hookspecs", "protocols", "types", "errors", "algo.batch", "config.schema", "plugins")
    code = "import sys; " + "; ".join(f"import trinity_core.{name}" for name in names)
    code += f"; loaded = {HEAVY!r} & set(sys.modules); assert not loaded, loaded"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_test_files_have_names_of_their_own():
    """pytest imports a test file by its bare name, so two of one name in two folders cannot both be collected."""
    files = [path for folder in ("tests", "plugins") for path in (ROOT / folder).rglob("test_*.py")]
    packages = {path.parent for path in files if (path.parent / "__init__.py").exists()}
    names = [path.name for path in files if path.parent not in packages]
    assert sorted(names) == sorted(set(names))
