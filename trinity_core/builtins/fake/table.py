"""The table: states, initial logits, and its folder on disk. numpy only."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trinity_core.builtins.fake.tokenizer import CHARACTERS, END, VOCABULARY, CharTokenizer
from trinity_core.config.schema import RunConfig
from trinity_core.errors import ModelError

MODEL_TYPE = "trinity_table"
WEIGHTS = "model.safetensors"

_MULTIPLIER = 0x9E3779B97F4A7C15
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)
_MASK = (1 << 64) - 1


@dataclass
class Table:
    """The policy's weights, shared by reference where a backend and an engine live in one process."""

    logits_SV: NDArray[np.float64] = field(repr=False)
    """Logits of the next token in each state."""

    @property
    def states(self) -> int:
        return len(self.logits_SV)


def initial_table(states: int, alphabet: str, noise: float, seed: int) -> NDArray[np.float64]:
    """[states, V] logits of a policy that knows nothing: half its mass ends the reply, half is spread over ``alphabet``,
    every other token is at −8 (three in ten thousand); ``noise`` is the standard deviation of what is added to all."""
    unknown = sorted(set(alphabet) - set(CHARACTERS))
    if unknown or not alphabet:
        raise ModelError(f"alphabet {alphabet!r}: choose at least one printable ASCII character, and only such")
    logits_V = np.full(len(VOCABULARY), -8.0)
    logits_V[CharTokenizer().encode(alphabet)] = 0.0
    # With p the chance to end, "one letter, then the end" has chance (1 - p) / letters * p: most at p = 1/2.
    logits_V[END] = np.log(len(set(alphabet)))
    rng = np.random.default_rng([seed, 0x7AB1E])
    return logits_V + noise * rng.standard_normal((states, len(VOCABULARY)))


# --- states -----------------------------------------------------------------------------------------------------------


def extend_hash(hash_B: NDArray[np.uint64], token_B: NDArray[np.int32]) -> NDArray[np.uint64]:
    """The hashes of prefixes one token longer: ``h · m + token + 1`` mod 2^64, from 0 for the empty prefix."""
    return hash_B * np.uint64(_MULTIPLIER) + token_B.astype(np.uint64) + np.uint64(1)


def prefix_hashes(tokens_T: NDArray[np.int32], offsets_B1: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The hash of each position's prefix *including* its own token, for sequences that lie flat one after another.

    The recurrence of :func:`extend_hash` in closed form, ``m^n · Σ (token_i + 1) · m^-i``, exact mod 2^64.
    """
    lengths_B = np.diff(offsets_B1)
    longest = int(lengths_B.max(initial=0))
    place_T = np.arange(len(tokens_T)) - np.repeat(offsets_B1[:-1], lengths_B)
    up, down = _powers(_MULTIPLIER, longest), _powers(_INVERSE, longest)
    sums_T = np.cumsum((tokens_T.astype(np.uint64) + np.uint64(1)) * down[place_T], dtype=np.uint64)
    before_B = np.concatenate([np.zeros(1, np.uint64), sums_T])[offsets_B1[:-1]]
    hash_T: NDArray[np.uint64] = (sums_T - np.repeat(before_B, lengths_B)) * up[place_T]
    return hash_T


def state_of(hash_N: NDArray[np.uint64], states: int) -> NDArray[np.int64]:
    """The row of the table for prefixes with these hashes (splitmix64's finalizer, then mod ``states``)."""
    mixed = (hash_N ^ (hash_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(states)).astype(np.int64)


def _powers(base: int, n: int) -> NDArray[np.uint64]:
    powers = np.full(max(n, 1), base & _MASK, dtype=np.uint64)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint64)


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logp: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logp


# --- the folder -------------------------------------------------------------------------------------------------------


def write_folder(folder: Path, logits_SV: NDArray[np.float64]) -> None:
    """``config.json`` and ``model.safetensors`` with one tensor, ``logits``."""
    from safetensors.numpy import save_file

    config = {"model_type": MODEL_TYPE, "states": len(logits_SV), "vocabulary": CharTokenizer().digest()}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({"logits": np.ascontiguousarray(logits_SV)}, folder / WEIGHTS)


def read_weights(folder: Path) -> NDArray[np.float64]:
    """The logits in ``folder/model.safetensors``."""
    from safetensors.numpy import load_file

    try:
        logits_SV = load_file(folder / WEIGHTS)["logits"]
    except Exception as error:  # the reader's own error class is not public
        raise ModelError(f"{folder / WEIGHTS}: no table 'logits' could be read ({error})") from error
    if logits_SV.ndim != 2 or logits_SV.shape[1] != len(VOCABULARY):
        raise ModelError(
            f"{folder / WEIGHTS}: 'logits' is {list(logits_SV.shape)}, a table is [states, {len(VOCABULARY)}]"
        )
    return np.array(logits_SV, dtype=np.float64)


def read_folder(folder: Path) -> NDArray[np.float64]:
    """The logits that :func:`write_folder` wrote, if this version reads its vocabulary."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}: no table policy ({error}). Use model.path=fake or an exported folder") from error
    if config.get("model_type") != MODEL_TYPE or config.get("vocabulary") != CharTokenizer().digest():
        raise ModelError(
            f"{folder}/config.json: not a table policy of this version. Use model.path=fake or export it again"
        )
    return read_weights(folder)


def starting_table(path: str, *, states: int, alphabet: str, noise: float, seed: int) -> NDArray[np.float64]:
    """The logits that ``model.path`` names: a fresh table for ``fake``, else an exported folder."""
    return initial_table(states, alphabet, noise, seed) if path == "fake" else read_folder(Path(path))


def refuse_model(config: RunConfig) -> str | None:
    """Why a table cannot be the model that the shared node asks for."""
    model = config.model
    if model.path != "fake" and not (Path(model.path) / WEIGHTS).is_file():
        return f"model.path={model.path!r} is not a table policy. Use model=fake, or the folder of an exported one"
    if model.lora is not None:
        return "model.lora: a table has no layers to adapt. Use model.lora=null"
    if model.chat_template is not None:
        return "model.chat_template: the table policy has a fixed template. Use model.chat_template=null"
    if model.dtype not in ("auto", "float64"):
        return f"model.dtype={model.dtype}: a table is float64. Use model.dtype=auto"
    return None
