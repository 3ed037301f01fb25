"""Rules of engines: what is sampled depends on request and weights alone, and every log-probability is the policy's own.

An engine that is not for the reference model says what to put beside it: ``beside = ("model=fake", "backend=fake")``.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from trinity_core.protocols import Engine, LiveBackend, LiveEngine
from trinity_core.testing.fakes import Digits
from trinity_core.testing.play import requests_for
from trinity_core.testing.rules import NotApplicable, require
from trinity_core.testing.stage import BESIDE, carried, kit_run, partner, tolerance
from trinity_core.types import Completion, Request, Sampling, Weights

__all__ = ["BESIDE", "RULES", "run_for"]

run_for = kit_run


@contextmanager
def stage(component: Engine, tmp: Path) -> Iterator[tuple[LiveEngine, LiveBackend]]:
    """The engine, and the backend whose weights it samples from, opened in one run; version 0 is loaded."""
    run = kit_run(component, tmp)
    backend = partner(component, "backend").open(run)
    engine = component.open(run)
    try:
        asyncio.run(engine.load(carried(component, backend, 0, tmp)))
        yield engine, backend
    finally:
        engine.close()
        backend.close()


def moved(backend: LiveBackend) -> None:
    """Change the policy by training one step."""
    from trinity_core.testing.one_update import trained_once

    trained_once(backend)


def asked(engine: LiveEngine, sampling: Sampling | None = None, n: int = 3) -> list[Request]:
    tasks = [(row, Digits()[row]) for row in range(4)]
    return requests_for(engine.tokenizer, tasks, n, sampling=sampling or Sampling(max_tokens=5))


def answered(engine: LiveEngine, requests: list[Request]) -> list[Completion]:
    return asyncio.run(engine.generate_wave(requests))


def same(a: Completion, b: Completion) -> bool:
    return bool(np.array_equal(a.tokens_N, b.tokens_N) and np.array_equal(a.logp_N, b.logp_N) and a.finish == b.finish)


# --- rules ------------------------------------------------------------------------------------------------------------


def logp_equals_score(component: Engine, tmp: Path) -> None:
    """The log-probability stored with a token is what scoring the whole sequence gives."""
    if "score" not in component.capabilities:
        raise NotApplicable("it cannot score given tokens")
    with stage(component, tmp) as (engine, _):
        requests = asked(engine)
        for request, completion in zip(requests, answered(engine, requests), strict=True):
            tokens_T = np.concatenate([request.tokens_T, completion.tokens_N]).astype(np.int32)
            scored_T = asyncio.run(engine.score(tokens_T)).logp_T
            require(
                len(scored_T) == len(tokens_T) and np.isnan(scored_T[0]), "score() must give NaN for the first token"
            )
            worst = np.abs(scored_T[len(request.tokens_T) :] - completion.logp_N).max()
            require(worst <= tolerance(component, tmp), f"score() differs by {worst:.2e} at {request.key}")


def logp_is_aligned(component: Engine, tmp: Path) -> None:
    """Log-probabilities belong to their own token: no shift by one fits better (LPM-07)."""
    if "score" not in component.capabilities:
        raise NotApplicable("it cannot score given tokens")
    with stage(component, tmp) as (engine, _):
        requests = asked(engine, Sampling(max_tokens=8), n=8)
        told, scored = [], []
        for request, completion in zip(requests, answered(engine, requests), strict=True):
            tokens_T = np.concatenate([request.tokens_T, completion.tokens_N]).astype(np.int32)
            told.append(completion.logp_N)
            scored.append(asyncio.run(engine.score(tokens_T)).logp_T[len(request.tokens_T) :])
        require(best_lag(told, scored) == 0, f"log-probabilities fit best when shifted by {best_lag(told, scored)}")


def best_lag(told: list[Any], scored: list[Any]) -> int:
    """The shift of −1, 0, 1 at which two lists of log-probabilities agree best (mean absolute difference)."""

    def distance(lag: int) -> float:
        pairs = [
            (a[max(lag, 0) : len(a) + min(lag, 0)], b[max(-lag, 0) : len(b) + min(-lag, 0)])
            for a, b in zip(told, scored)
        ]
        return float(np.mean(np.concatenate([np.abs(a - b) for a, b in pairs])))

    return min((0, -1, 1), key=distance)


def versions_are_stamped(component: Engine, tmp: Path) -> None:
    """Every token says which version produced it, from the first on."""
    with stage(component, tmp) as (engine, _):
        for completion in answered(engine, asked(engine)):
            require(
                len(completion.tokens_N) == len(completion.logp_N) >= 1,
                "as many log-probabilities as tokens, at least one",
            )
            require(completion.versions == [(0, 0)], f"versions {completion.versions}, version 0 was loaded")


def same_seed_same_tokens(component: Engine, tmp: Path) -> None:
    """A request's answer does not depend on who else is in the wave, nor on the order."""
    if "deterministic" not in component.capabilities:
        raise NotApplicable("it does not claim to be deterministic")
    with stage(component, tmp) as (engine, _):
        requests = asked(engine)
        whole = answered(engine, requests)
        again = answered(engine, requests)
        back = answered(engine, requests[::-1])[::-1]
        part = answered(engine, requests[::3])
        for name, found, expected in (("again", again, whole), ("reversed", back, whole), ("fewer", part, whole[::3])):
            for a, b in zip(found, expected, strict=True):
                require(np.array_equal(a.tokens_N, b.tokens_N), f"{name}: other tokens for the same request")
        require(all(map(same, again, whole)), "again: other log-probabilities for the same wave")
        require(len({completion.tokens_N.tobytes() for completion in whole}) > 1, "every request got the same reply")


def the_seed_is_the_noise(component: Engine, tmp: Path) -> None:
    """Another seed gives another reply; the key itself adds nothing."""
    if "deterministic" not in component.capabilities:
        raise NotApplicable("it does not claim to be deterministic")
    with stage(component, tmp) as (engine, _):
        request = asked(engine, Sampling(max_tokens=8))[0]
        others = [dataclasses.replace(request, seed=request.seed + n) for n in range(1, 9)]
        replies = answered(engine, [request, *others])
        require(len({reply.tokens_N.tobytes() for reply in replies}) > 1, "nine seeds, one reply")
        renamed = dataclasses.replace(request, key=dataclasses.replace(request.key, draw=99))
        require(same(answered(engine, [request])[0], answered(engine, [renamed])[0]), "the key changed the reply")


def greedy_takes_the_likeliest(component: Engine, tmp: Path) -> None:
    """Temperature 0 takes the likeliest token; its log-probability is taken at temperature 1."""
    if "score" not in component.capabilities:
        raise NotApplicable("it cannot score given tokens")
    with stage(component, tmp) as (engine, _):
        request = asked(engine, Sampling(temperature=0.0, max_tokens=3))[0]
        reply = answered(engine, [request])[0]
        tokens_T = np.concatenate([request.tokens_T, reply.tokens_N]).astype(np.int32)
        scores = asyncio.run(engine.score(tokens_T, topk=1))
        start = len(request.tokens_T)
        require(scores.top_logp_TK is not None, "score(topk=1) gave no top log-probabilities")
        gap = np.abs(scores.top_logp_TK[start:, 0] - reply.logp_N).max()  # type: ignore[index]
        require(gap <= tolerance(component, tmp), f"greedy is {gap:.2e} below the likeliest token")


def temperature_enters_logp(component: Engine, tmp: Path) -> None:
    """logp is log softmax(logits / T): the likelier of two tokens gains on the other as T falls (LPM-01)."""
    with stage(component, tmp) as (engine, _):
        warm = answered(engine, asked(engine, Sampling(temperature=1.0, max_tokens=1), n=16))
        cold = answered(engine, asked(engine, Sampling(temperature=0.25, max_tokens=1), n=16))
        means = [float(np.mean(np.concatenate([c.logp_N for c in wave]))) for wave in (warm, cold)]
        require(
            means[1] > means[0], f"mean logp {means[1]:.3f} at T=.25, {means[0]:.3f} at T=1: raw log-probabilities?"
        )


def limits_are_kept(component: Engine, tmp: Path) -> None:
    """``max_tokens`` is a limit, and a reply that reaches it without ending says *length*."""
    with stage(component, tmp) as (engine, _):
        for reply in answered(engine, asked(engine, Sampling(max_tokens=2))):
            ended = int(reply.tokens_N[-1]) in engine.tokenizer.eos_ids
            require(len(reply.tokens_N) <= 2, f"{len(reply.tokens_N)} tokens, 2 were allowed")
            require(reply.finish == ("stop" if ended else "length"), f"finish {reply.finish!r}, ended: {ended}")


def top_k_one_is_greedy(component: Engine, tmp: Path) -> None:
    """Truncation to one token leaves the likeliest, with its log-probability before truncation."""
    if "top_k" not in component.capabilities:
        raise NotApplicable("it does not know top_k")
    with stage(component, tmp) as (engine, _):
        one = answered(engine, asked(engine, Sampling(top_k=1, max_tokens=3)))
        greedy = answered(engine, asked(engine, Sampling(temperature=0.0, max_tokens=3)))
        for a, b in zip(one, greedy, strict=True):
            require(np.array_equal(a.tokens_N, b.tokens_N), "top_k=1 took another token than temperature 0")
            worst = np.abs(a.logp_N - b.logp_N).max()
            require(worst <= tolerance(component, tmp), f"logp after truncation: {worst:.2e} off")


def tiny_top_p_is_greedy(component: Engine, tmp: Path) -> None:
    """A nucleus of nearly nothing is the likeliest token."""
    if "top_p" not in component.capabilities:
        raise NotApplicable("it does not know top_p")
    with stage(component, tmp) as (engine, _):
        nucleus = answered(engine, asked(engine, Sampling(top_p=1e-6, max_tokens=3)))
        greedy = answered(engine, asked(engine, Sampling(temperature=0.0, max_tokens=3)))
        require(all(np.array_equal(a.tokens_N, b.tokens_N) for a, b in zip(nucleus, greedy, strict=True)), "not greedy")


def a_load_changes_what_is_sampled(component: Engine, tmp: Path) -> None:
    """The same prompt gives other log-probabilities after the weights moved: no cache outlives them (LPM-09)."""
    with stage(component, tmp) as (engine, backend):
        before = answered(engine, asked(engine))
        moved(backend)
        receipt = asyncio.run(engine.load(carried(component, backend, 1, tmp)))
        after = answered(engine, asked(engine))
        require(
            receipt.version == engine.version == 1,
            f"version 1 sent, receipt {receipt.version}, engine {engine.version}",
        )
        require(all(c.versions == [(1, 0)] for c in after), "tokens are not stamped with the new version")
        require(
            not all(map(same, before, after)), "nothing changed: the weights did not arrive, or a cache outlived them"
        )


def a_receipt_has_evidence(component: Engine, tmp: Path) -> None:
    """The receiver says how it knows: the same object, or a digest of what it holds (WGT-01, WGT-02)."""
    with stage(component, tmp) as (engine, backend):
        moved(backend)
        weights = carried(component, backend, 7, tmp)
        receipt = asyncio.run(engine.load(weights))
        require(receipt.version == 7, f"version 7 was sent, {receipt.version} acknowledged")
        require(receipt.evidence in ("same_object", "digest", "probe"), f"evidence {receipt.evidence!r}")
        if receipt.evidence == "same_object":
            require(weights.kind == "module", f"same_object for weights of kind {weights.kind}")
        if receipt.evidence == "digest" and weights.digest is not None:
            require(receipt.digest == weights.digest, "the engine holds other weights than were sent")


def unknown_weights_are_refused(component: Engine, tmp: Path) -> None:
    """Weights of a kind it does not take raise, and the version stays."""
    with stage(component, tmp) as (engine, _):
        kinds = {"tensors", "module", "folder", "adapter", "handle"} - component.accepts
        for kind in sorted(kinds):
            try:
                asyncio.run(engine.load(Weights(5, kind, None)))  # type: ignore[arg-type]
            except Exception as error:  # noqa: BLE001 - any refusal will do, its words must name the kind
                require(kind in str(error), f"the refusal does not name {kind!r}: {error}")
            else:
                raise AssertionError(f"weights of kind {kind!r} were taken, accepts says {sorted(component.accepts)}")
            require(engine.version == 0, f"version {engine.version} after a refusal")


def answers_are_streamed(component: Engine, tmp: Path) -> None:
    """``stream_wave`` gives each answer of ``generate_wave`` once, under its request's place."""
    with stage(component, tmp) as (engine, _):
        requests = asked(engine)

        async def told() -> list[tuple[int, Completion]]:
            return [one async for one in engine.stream_wave(requests)]

        found = asyncio.run(told())
        places = sorted(place for place, _ in found)
        require(places == list(range(len(requests))), f"stream_wave answered the places {places}")
        whole = answered(engine, requests)
        require(all(same(one, whole[place]) for place, one in found), "a streamed answer is another than the wave's")


def closes_twice(component: Engine, tmp: Path) -> None:
    with stage(component, tmp) as (engine, _):
        engine.close()
        engine.close()


RULES: dict[str, Callable[..., None]] = {
    "log-probabilities equal score()": logp_equals_score,
    "log-probabilities are not shifted": logp_is_aligned,
    "every token is stamped with its version": versions_are_stamped,
    "a wave's composition changes nothing": same_seed_same_tokens,
    "the seed alone is the noise": the_seed_is_the_noise,
    "temperature 0 takes the likeliest token": greedy_takes_the_likeliest,
    "log-probabilities are taken at the temperature": temperature_enters_logp,
    "limits are kept and told": limits_are_kept,
    "top_k of one is greedy": top_k_one_is_greedy,
    "a tiny top_p is greedy": tiny_top_p_is_greedy,
    "loading changes what is sampled": a_load_changes_what_is_sampled,
    "a receipt has evidence": a_receipt_has_evidence,
    "unknown weights are refused": unknown_weights_are_refused,
    "answers are streamed": answers_are_streamed,
    "closes twice": closes_twice,
}
