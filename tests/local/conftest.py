"""A tiny random Llama, on one thread."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from trinity_core.config.schema import Lora, Model, Optim
from trinity_core.testing.fakes import FakeRun, bare_config
from trinity_core.testing.tiny import make_tiny


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def make_run(tiny: Path, tmp_path: Path) -> Any:
    def make(dtype: str = "float32", *, lora: Lora | None = None, path: str | None = None, **model: Any) -> FakeRun:
        config = bare_config(model=Model(path or str(tiny), dtype=dtype, lora=lora, **model), optim=Optim(lr=1e-3))
        return FakeRun(dir=tmp_path, config=dataclasses.replace(config))

    return make
