"""The public signatures as text: ``python scripts/api.py`` writes ``tests/api/golden/``; a test compares.

A golden file is the module without docstrings, bodies, imports and private names: what a plugin may rely on. A diff in one
is a change of contract, and is reviewed as such.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from trinity_core.kinds import KINDS

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests/api/golden"
MODULES = (
    "trinity_core.kinds",
    "trinity_core.markers",
    "trinity_core.hookspecs",
    "trinity_core.protocols",
    "trinity_core.types",
    "trinity_core.errors",
    "trinity_core.algo",
    "trinity_core.algo.batch",
    "trinity_core.algo.loss_batch",
    "trinity_core.config.schema",
)
PROVISIONAL = {name for kind in KINDS.values() if kind.provisional for name in (kind.protocol, kind.hook)}


def surface(module: str) -> str:
    """Every public name of a module with its exact signature."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    return ast.unparse(ast.Module(_public(tree.body), [])) + "\n"


def _public(body: list[ast.stmt]) -> list[ast.stmt]:
    kept: list[ast.stmt] = []
    for line in body:
        match line:
            case ast.Expr() | ast.Import() | ast.ImportFrom() | ast.If():
                continue
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                if (
                    name in PROVISIONAL
                    or (name.startswith("_") and not name.startswith("__"))
                    or name == "__post_init__"
                ):
                    continue
                line.body = _public(line.body) if isinstance(line, ast.ClassDef) else _required(line.body)
                line.body = line.body or [ast.Expr(ast.Constant(...))]
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if name.startswith(
                "_"
            ):
                continue
            case _:
                pass
        kept.append(line)
    return kept


def _required(body: list[ast.stmt]) -> list[ast.stmt]:
    """What is left of a method: ``raise NotImplementedError`` marks a required one."""
    last = body[-1]
    bare = isinstance(last, ast.Raise) and isinstance(last.exc, ast.Name) and last.exc.id == "NotImplementedError"
    return [last] if bare else []


def goldens() -> dict[Path, str]:
    """Path and content of each golden file."""
    return {GOLDEN / f"{module}.txt": surface(module) for module in MODULES}


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for path, text in goldens().items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
