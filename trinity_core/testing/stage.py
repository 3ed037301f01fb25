"""Where backends and engines are tested: a small model, and a partner to exchange weights with.

A component that is not for a Hugging Face folder says what a run needs beside it, in the words a user types:
``beside: ClassVar = ("model=fake", "engine=fake")``. Without it the model is a tiny random Llama, the backend ``local``,
the engine ``hf``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trinity_core.config.schema import Critic, Model, Optim, SamplingConfig
from trinity_core.protocols import Engine, LiveBackend
from trinity_core.testing.fakes import FakeRun, bare_config
from trinity_core.testing.rules import NotApplicable
from trinity_core.types import Weights

REFERENCE = {"backend": "local", "engine": "hf"}


def BESIDE(cls: type) -> tuple[str, ...]:
    """Words for the config rules; a component's own ``beside`` comes after them."""
    return ()


def _beside(component: Any) -> dict[str, str]:
    return dict(word.split("=", 1) for word in getattr(type(component), "beside", ()))


def partner(component: Any, kind: str) -> Any:
    """The component of the other kind that this one exchanges weights with."""
    from trinity_core.plugins import resolve

    return resolve(kind, _beside(component).get(kind, REFERENCE[kind]))()


def kit_run(component: Any, tmp: Path) -> FakeRun:
    """A run of a small model in float64 where the component can, with a learning rate that moves it."""
    tmp = Path(tmp)
    words = _beside(component)
    path = words.get("model.path") or words.get("model")
    if path is None:
        from trinity_core.testing.tiny import make_tiny

        path = str(tmp / "tiny-model")
        if not Path(path).exists():
            make_tiny(path)
    fake = path == "fake"
    run_folder = tmp / "run"
    run_folder.mkdir(exist_ok=True)
    configs = [
        bare_config(
            model=Model(path, dtype=dtype),
            # A large eps: Adam divides rounding noise by nothing smaller.
            optim=Optim(lr=0.3 if fake else 1e-3, eps=1e-3),
            critic=Critic(lr=0.3 if fake else 1e-3) if "value" in getattr(component, "provides", ()) else None,
            sampling=SamplingConfig(max_response=8),
        )
        for dtype in ("float64", "auto")
    ]
    refused = component.refuse(configs[0])
    return FakeRun(dir=run_folder, config=configs[0] if refused is None else configs[1])


def tolerance(component: Any, tmp: Path) -> float:
    """Largest difference of log-probabilities that rounding explains."""
    return 1e-10 if kit_run(component, tmp).config.model.dtype == "float64" else 1e-4


def carried(component: Engine, backend: LiveBackend, version: int, tmp: Path) -> Weights:
    """The backend's weights in a form that the engine takes: a copy where possible."""
    weights = backend.publish(version, copy=True)
    if weights.kind in component.accepts:
        return weights
    if "module" in component.accepts:
        return backend.publish(version, copy=False)
    if "folder" in component.accepts:
        folder = tmp / f"version-{version}"
        folder.mkdir()
        backend.export(folder)
        return Weights(version, "folder", str(folder))
    raise NotApplicable(f"it takes {sorted(component.accepts)}, which the kit cannot make")
