"""The live side of ``hf``: weights, versions, and one thread that computes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from trinity_core.algo.digest import digest_tensors
from trinity_core.builtins.engines.hf import HF
from trinity_core.builtins.engines.hf_decoder import Decoder
from trinity_core.builtins.engines.hf_fused import Fused, FusedBatch
from trinity_core.builtins.engines.hf_module import ModuleBatch
from trinity_core.builtins.engines.hf_wave import Batch, Reply, Wave
from trinity_core.builtins.models import adapter
from trinity_core.builtins.models.causal import CausalLM
from trinity_core.builtins.models.head import CHUNK
from trinity_core.builtins.models.resolve import resolve_model
from trinity_core.config.schema import Model
from trinity_core.errors import DataError, DeliveryError
from trinity_core.openmp import release_workers
from trinity_core.protocols import LiveEngine, RunContext
from trinity_core.rollout.tokenizer import HFTokenizer
from trinity_core.types import Completion, Key, Receipt, Request, Scores, Weights

log = logging.getLogger(__name__)


class LiveHF(LiveEngine):
    """Waves and loads queue up for one thread, so a load waits for the wave before it and no wave mixes weights
    (unless ``in_flight="continue"`` asks for that: then the load happens between two tokens).

    Nothing is loaded before it is needed: the first delivery brings the weights; where a wave comes first (an auxiliary
    model) the folder's own are used and called version 0.
    """

    def __init__(self, config: HF, folder: Path, model: Model, *, threads: int | None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.config, self.model_config, self.folder = config, model, folder
        self.tokenizer = HFTokenizer(folder, model.chat_template)
        self.version = -1
        self.context: int | None = json.loads((folder / "config.json").read_text()).get("max_position_embeddings")
        """Tokens of prompt and reply together that the model has positions for."""
        self._model: CausalLM | None = None
        self._own: CausalLM | None = None
        self._base: int | None = None
        self._fused = Fused(config.fused)
        self._deliveries = 0
        self._waves: list[Wave] = []
        self._between: list[Callable[[], None]] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hf")

    @classmethod
    def open(cls, config: HF, run: RunContext) -> LiveHF:
        policy = run.config.model
        other = config.path is not None
        model = policy if not other else Model(config.path or policy.path, policy.dtype)
        return cls(config, resolve_model(model.path), model, threads=run.config.threads)

    # playing

    async def generate(self, request: Request) -> Completion:
        return (await self.generate_wave([request]))[0]

    async def generate_wave(self, requests: Sequence[Request]) -> list[Completion]:
        """One batch; answers in the order of ``requests``. Raises :class:`DataError` for a request that asks for nothing."""
        async with contextlib.aclosing(self.stream_wave(requests)) as answers:
            found = {place: completion async for place, completion in answers}
        return [found[place] for place in range(len(requests))]

    async def stream_wave(self, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, Completion], None]:
        for request in requests:
            if request.sampling.max_tokens < 1 or len(request.tokens_T) < 1:
                raise DataError(
                    f"{request.key}: {len(request.tokens_T)} prompt tokens, max_tokens {request.sampling.max_tokens}; both are at least 1"
                )
        ended: asyncio.Queue[list[int]] = asyncio.Queue()
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, ended.put_nowait)
        wave = Wave(requests, self.tokenizer, self.context, told=tell)
        left = set(range(len(requests)))
        playing = self._submit(wave.play, partial(self._start, wave.most), self._between_steps)
        self._waves.append(wave)
        playing.add_done_callback(lambda _: ended.put_nowait([]))
        try:
            while not playing.done() or not ended.empty():
                for place in await ended.get():
                    left.remove(place)
                    yield place, wave.replies[place].completion()
            await playing
            for place in sorted(left):  # aborted, or without room for a token
                yield place, wave.replies[place].completion()
        finally:
            if not playing.done():
                wave.abort()
                playing.cancel()
            elif not playing.cancelled():
                playing.exception()  # who left early does not hear of it any more
            self._waves.remove(wave)

    def _start(self, most: int, live: list[Reply]) -> Batch:
        """Compute the prompts: in fused steps where the model allows them, else through its module."""
        lm = self._held()
        if self._fused.decoder(lm, self._deliveries, most) is None:
            return ModuleBatch(self._held, live)
        return FusedBatch(partial(self._decoder, most), live)

    def _decoder(self, most: int) -> Decoder:
        decoder = self._fused.decoder(self._held(), self._deliveries, most, look=False)
        if decoder is None:
            raise DeliveryError(
                f"engine hf: version {self.version} came in flight and is no model for fused steps, unlike the one before. Set engine.fused=false"
            )
        return decoder

    def _between_steps(self) -> int:
        self._drain()
        self._held()
        return self.version

    async def score(self, tokens_T: NDArray[np.int32], *, topk: int = 0) -> Scores:
        return await self._run(self._score, np.asarray(tokens_T, np.int64), topk)  # type: ignore[no-any-return]

    async def abort(self, keys: Sequence[Key]) -> None:
        for wave in self._waves:
            wave.abort(frozenset(keys))

    # weights

    async def load(self, weights: Weights, *, in_flight: Literal["finish", "abort", "continue"] = "finish") -> Receipt:
        if weights.kind not in self.config.accepts:
            raise DeliveryError(
                f"engine hf cannot load weights of kind {weights.kind!r}. It takes {', '.join(sorted(self.config.accepts))}"
            )
        if in_flight == "abort":
            for wave in self._waves:
                wave.abort()
        done: Future[Receipt] = Future()
        if in_flight == "continue":
            self._between.append(partial(_settle, done, self._receive, weights))
            self._submit(self._drain)  # where no wave runs, now; else a wave does it before its next token
        else:
            self._submit(self._take, done, weights)
        return await asyncio.wrap_future(done)

    def _take(self, done: Future[Receipt], weights: Weights) -> None:
        """Load, then make ready for a wave: its prompts are rendered meanwhile."""
        _settle(done, self._receive, weights)
        if done.cancelled() or done.exception() is not None:
            return
        try:
            self._fused.ahead(self._model, self._deliveries)
        except Exception:
            # the wave makes ready itself what is not, and fails where it has to
            log.warning("engine hf: version %s was not made ready ahead of its first wave", self.version, exc_info=True)

    def _receive(self, weights: Weights) -> Receipt:
        self._deliveries += 1
        if weights.kind == "module":
            if not isinstance(weights.payload, CausalLM):
                raise DeliveryError(
                    f"engine hf shares the module of backend local, got {type(weights.payload).__name__}. Use backend=local"
                )
            self._model, self._own, self.version = weights.payload, None, weights.version
            return Receipt(weights.version, "hf", "same_object")
        tensors = _read(Path(weights.payload)) if isinstance(weights.payload, (str, Path)) else weights.payload
        origin = f"version {weights.version}"
        if weights.kind == "adapter":
            if self.model_config.lora is None:
                raise DeliveryError(
                    f"engine hf: {origin} is adapters, and this engine's model has none. Set model.lora as the trainer has it, and no engine.path"
                )
            if self._base is None:
                self._base = adapter.base_digest(self.folder)
            if self._own is None or self._own.peft is None:
                self._own = self._load_folder(adapters=True)
            adapter.assign(self._own, tensors, self._base, origin)
            held: Iterable[tuple[str, torch.Tensor]] = adapter.packed(self._own, self._base).items()
        else:
            if self._own is None or self._own.peft is not None:
                self._own = self._load_folder()
            self._own.assign(tensors, origin)
            held = self._own.module.named_parameters()
        self._model, self.version = self._own, weights.version
        return Receipt(weights.version, "hf", "digest", None if weights.digest is None else digest_tensors(held))

    def _load_folder(self, *, adapters: bool = False) -> CausalLM:
        lora = self.model_config.lora if adapters else None
        return CausalLM.load(self.folder, self.model_config, device=self.config.device, lora=lora, empty=True)

    def _held(self) -> CausalLM:
        """The weights that are sampled from; the folder's own where none were delivered."""
        if self._model is None:
            self._model = self._own = self._load_folder()
            self._own.narrow()
            self.version = 0
        return self._model

    def _drain(self) -> None:
        """Loads that asked to happen between two tokens."""
        while self._between:
            self._between.pop(0)()

    # scoring

    @torch.no_grad()
    def _score(self, tokens_T: NDArray[np.int64], topk: int) -> Scores:
        self._drain()
        lm = self._held()
        ids_T = torch.from_numpy(tokens_T).to(lm.device)
        logp_T = np.full(len(tokens_T), np.nan, np.float64 if lm.compute == torch.float64 else np.float32)
        ids_TK = np.zeros((len(tokens_T), topk), np.int32)
        top_TK = np.full((len(tokens_T), topk), np.nan, logp_T.dtype)
        with lm.recipe():
            hidden_TH = lm.hidden(ids_T[None], torch.arange(len(ids_T), device=lm.device)[None], None)[0]
            for start in range(0, len(tokens_T) - 1, CHUNK):
                stop = min(start + CHUNK, len(tokens_T) - 1)
                logits_CV = lm.logits(hidden_TH[start:stop])
                total_C = torch.logsumexp(logits_CV, -1)
                here = slice(start + 1, stop + 1)
                logp_T[here] = (logits_CV.gather(1, ids_T[here, None])[:, 0] - total_C).cpu().numpy()
                if topk:
                    values, ids = logits_CV.topk(topk, dim=-1)
                    ids_TK[here], top_TK[here] = ids.cpu().numpy(), (values - total_C[:, None]).cpu().numpy()
        return Scores(logp_T, ids_TK, top_TK) if topk else Scores(logp_T)  # type: ignore[arg-type]

    # the thread

    def _submit(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._thread, partial(_alone, function, *args))

    async def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._submit(function, *args)

    def close(self) -> None:
        for wave in self._waves:
            wave.abort()
        self._thread.shutdown(wait=True)
        self._model = self._own = None


def _alone(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    finally:
        release_workers()


def _settle(done: Future[Receipt], function: Callable[[Weights], Receipt], weights: Weights) -> None:
    """Run a load on the engine's thread for somebody who waits elsewhere; not where nobody does any more."""
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(function(weights))
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
        done.set_exception(error)


def _read(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    try:
        if not files:
            raise FileNotFoundError("no *.safetensors in it")
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise DeliveryError(
            f"{folder}: published weights cannot be read ({error}). The trainer may have moved on; poll again"
        ) from error
