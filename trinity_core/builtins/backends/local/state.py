"""What a checkpoint of ``local`` holds, and the export of a plain model folder. Everything is safetensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trinity_core.algo.digest import digest_tensors
from trinity_core.builtins.models.causal import CausalLM, quiet
from trinity_core.errors import CheckpointError

if TYPE_CHECKING:
    from trinity_core.builtins.backends.local.learner import Learner
    from trinity_core.builtins.backends.local.live import LiveLocal

WEIGHTS, TRAINER = "weights.safetensors", "optimizer.safetensors"
PREFIX = {"policy": "", "critic": "critic_"}
"""Of the file names of each learner."""


Files = dict[str, dict[str, Tensor]]
"""Tensors by file."""


def files(live: LiveLocal) -> Files:
    """Trained weights (with adapters: the adapters alone), optimizer moments, random state: the tensors themselves."""
    found: Files = {}
    for model, learner in live.learners.items():
        found[f"{PREFIX[model]}{WEIGHTS}"] = {name: p.detach() for name, p in learner.trained.items()}
        moments = {}
        for name, parameter in learner.trained.items():
            for part, value in learner.optimizer.state.get(parameter, {}).items():
                moments[f"{part}/{name}"] = value
        if model == "policy":
            moments["rng/cpu"] = torch.get_rng_state()
            if live.policy.device.type == "cuda":
                moments["rng/cuda"] = torch.cuda.get_rng_state(live.policy.device)
        found[f"{PREFIX[model]}{TRAINER}"] = moments
    return found


def save(live: LiveLocal, folder: Path) -> None:
    """Write :func:`files`. Raises CheckpointError."""
    write_all(files(live), folder)


def snapshot(live: LiveLocal) -> Callable[[Path], None]:
    """Copies of :func:`files` in the memory of the host, and what writes them."""
    copies = {
        file: {
            name: tensor.detach().cpu().clone() if tensor.device.type == "cpu" else tensor.detach().cpu()
            for name, tensor in tensors.items()
        }
        for file, tensors in files(live).items()
    }
    return partial(write_all, copies)


def write_all(tensors_by_file: Files, folder: Path) -> None:
    for file in list(tensors_by_file):
        write(folder / file, tensors_by_file[file])


def load(live: LiveLocal, folder: Path) -> None:
    """Back to exactly what :func:`save` saw: training goes on bit for bit. Nothing is changed if a file is not right."""
    saved = {}
    for model, prefix in PREFIX.items():
        weights, trainer = folder / f"{prefix}{WEIGHTS}", folder / f"{prefix}{TRAINER}"
        if model == "critic" and weights.is_file() != (model in live.learners):
            has = "has a critic, and this run has none" if weights.is_file() else "has no critic, and this run has one"
            raise CheckpointError(f"{folder}: {has}. Resume with the critic=… it was saved with")
        if model in live.learners:
            saved[model] = (read(weights), read(trainer))
            fits(live.learners[model], saved[model][0], weights)
    for model, (values, moments) in saved.items():
        learner = live.learners[model]
        with torch.no_grad():
            for name, value in values.items():
                learner.trained[name].copy_(value)
        learner.optimizer.state.clear()
        for key, value in moments.items():
            part, _, name = key.partition("/")
            if part != "rng":
                parameter = learner.trained[name]
                learner.optimizer.state[parameter][part] = value.clone().to(parameter.device)
    moments = saved["policy"][1]
    torch.set_rng_state(moments["rng/cpu"].clone())
    if "rng/cuda" in moments and live.policy.device.type == "cuda":
        torch.cuda.set_rng_state(moments["rng/cuda"].clone(), live.policy.device)


def fits(learner: Learner, weights: Mapping[str, Tensor], file: Path) -> None:
    """Refuse weights of another model."""
    for name in sorted(set(weights) ^ set(learner.trained)):
        where = "has" if name in weights else "lacks"
        raise CheckpointError(
            f"{file}: {where} {name}, other than this model. Resume with the model.path and model.lora it was saved with"
        )
    for name, value in weights.items():
        mine = learner.trained[name]
        if mine.shape != value.shape or mine.dtype != value.dtype:
            raise CheckpointError(
                f"{file}: {name} is {value.dtype}{list(value.shape)}, this model has {mine.dtype}{list(mine.shape)}. Resume with the model.path and model.dtype it was saved with"
            )


def export(live: LiveLocal, folder: Path) -> None:
    """A plain Hugging Face folder: config, weights in the master dtype with adapters merged, tokenizer, chat template,
    generation config. ``transformers`` loads it without this package."""
    folder.mkdir(parents=True, exist_ok=True)
    module = live.policy.module if live.policy.peft is None else merged(live)
    with quiet():
        module.save_pretrained(folder)
        live.tokenizer.hf.save_pretrained(folder)


def merged(live: LiveLocal) -> Any:
    """A plain model: the base, each adapter's product added in the master dtype. A base that was in 4 bits stays what its 4
    bits say, widened: added to the folder's own matrices, the adapters would make a policy that nobody trained or evaluated."""
    plain = CausalLM.load(live.policy.folder, dataclasses.replace(live.model_config, lora=None), device="cpu")
    with torch.no_grad():
        for name, matrix in live.policy.widened().items():
            plain.module.get_parameter(name).copy_(matrix)
        for name, delta in live.policy.deltas().items():
            plain.module.get_parameter(name).add_(delta.cpu())
    return plain.module


def write(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """One safetensors file that carries the digest of its tensors."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    whole = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    try:
        # One key: safetensors writes several in random order, and equal states must be equal files.
        save_file(whole, file, metadata={"digest": f"{digest_tensors(whole.items()):016x}"})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{file}: cannot be written ({error}). Free some space; the checkpoint before it is untouched"
        ) from error


def read(file: Path) -> dict[str, Tensor]:
    """The tensors of a file, compared with the digest it carries."""
    from safetensors import SafetensorError, safe_open

    way_on = "Resume from the checkpoint before it"
    try:
        with safe_open(file, "pt") as opened:
            told = (opened.metadata() or {}).get("digest")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error}). {way_on}") from error
    if told != f"{digest_tensors(tensors.items()):016x}":
        raise CheckpointError(f"{file}: its contents are not what was written (digest differs). {way_on}")
    return tensors
