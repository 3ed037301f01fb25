"""The engine ``hf``: what it samples, what it reports, and which weights it holds."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
import torch

from tests.local.helpers import batch, objective
from trinity_core.builtins.backends.local import Local
from trinity_core.builtins.engines.hf import HF
from trinity_core.builtins.engines.hf_sample import draw
from trinity_core.errors import DataError, DeliveryError, ModelError, RunError
from trinity_core.rollout.seeds import seed_of
from trinity_core.types import Key, Request, Sampling, Weights


def ask(prompt: list[int], attempt: int = 0, **sampling: Any) -> Request:
    key = Key("train", prompt[0], 0, attempt)
    return Request(key, np.array(prompt, np.int32), Sampling(**{"max_tokens": 12, **sampling}), seed_of(0, key))


def pair(run: Any, *, copy: bool = False, fused: bool = True) -> tuple[Any, Any]:
    backend, engine = Local().open(run), HF(fused=fused).open(run)
    asyncio.run(engine.load(backend.publish(0, copy=copy)))
    return backend, engine


def wave(engine: Any, requests: list[Request]) -> list[Any]:
    return asyncio.run(engine.generate_wave(requests))


MIXED = [ask([5 + p] * (4 + 3 * p), a, temperature=1.0 if a % 2 else 0.6) for p in range(3) for a in range(4)]


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("float64", 1e-10)])
@pytest.mark.parametrize("share", [True, False])
def test_engine_and_trainer_agree_on_every_sampled_token(make_run: Any, dtype: str, limit: float, share: bool) -> None:
    from tests.local.helpers import experience
    from trinity_core.algo.assemble import assemble
    from trinity_core.types import Attempt, Group, Ok, Task

    run = make_run(dtype)
    engine = pair(run)[1]
    backend = Local(share_prefix=share).open(run)
    replies = wave(engine, MIXED)
    groups = []
    for p in range(3):
        attempts = []
        for a in range(4):
            request, reply = MIXED[4 * p + a], replies[4 * p + a]
            one = experience(request.tokens_T.tolist(), reply.tokens_N.tolist(), request.sampling.temperature)
            one.logp_T[len(request.tokens_T) :] = reply.logp_N
            attempts.append(Attempt([one], index=a, score=Ok(0.0)))
        groups.append(Group(f"run/{p}", Task(str(p), ()), attempts, "train", p, p))
    made = assemble(groups, seed=0, step=0)
    told_N = np.concatenate([np.asarray(reply.logp_N, np.float64) for reply in replies])
    assert np.abs(backend.measure(made, "policy", frozenset({"logp"}))["logp"] - told_N).max() <= limit


def test_a_copy_samples_what_the_shared_module_samples(make_run: Any) -> None:
    run = make_run("bfloat16")
    shared, copied = pair(run)[1], pair(run, copy=True)[1]
    for a, b in zip(wave(shared, MIXED), wave(copied, MIXED)):
        assert a.tokens_N.tolist() == b.tokens_N.tolist() and a.logp_N.tolist() == b.logp_N.tolist()


def counted(monkeypatch: pytest.MonkeyPatch, of: Any) -> list[int]:
    """Notes how many rows or cells each call of ``of.hidden`` computes."""
    rows: list[int] = []
    inner = of.hidden
    monkeypatch.setattr(of, "hidden", lambda ids, *rest: (rows.append(len(ids)), inner(ids, *rest))[1])
    return rows


@pytest.mark.parametrize("fused", [True, False])
def test_equal_prompts_are_computed_once(make_run: Any, monkeypatch: pytest.MonkeyPatch, fused: bool) -> None:
    backend, engine = pair(make_run(), fused=fused)
    wave(engine, [ask([9, 8, 7])])
    rows = counted(monkeypatch, engine._fused._decoder if fused else backend.policy)
    wave(engine, [ask([9, 8, 7], a, max_tokens=2) for a in range(6)])
    assert rows[0] == (3 if fused else 1) and rows[1] <= 6


@pytest.mark.parametrize("fused", [True, False])
def test_finished_rows_leave_the_batch(make_run: Any, monkeypatch: pytest.MonkeyPatch, fused: bool) -> None:
    backend, engine = pair(make_run(), fused=fused)
    wave(engine, [ask([9, 8, 7])])
    rows = counted(monkeypatch, engine._fused._decoder if fused else backend.policy)
    requests = [ask([9, 8, 7], a, max_tokens=1 if a < 3 else 6) for a in range(4)]
    short = wave(engine, requests)
    assert rows[0] == (3 if fused else 1) and set(rows[1:]) == {1}
    assert wave(engine, requests[3:])[0].tokens_N.tolist() == short[3].tokens_N.tolist()


def test_no_cache_survives_a_load(make_run: Any) -> None:
    """LPM-09: the same prompt before and after an update is computed from the new weights alone."""
    backend, engine = pair(make_run())
    before = wave(engine, MIXED)
    backend.update(batch(), "policy", objective(), lr_scale=20.0)
    asyncio.run(engine.load(backend.publish(1, copy=False)))
    after, fresh = wave(engine, MIXED), wave(pair_of(backend, make_run()), MIXED)
    assert [a.logp_N.tolist() for a in after] == [f.logp_N.tolist() for f in fresh]
    assert [a.logp_N.tolist() for a in after] != [b.logp_N.tolist() for b in before]
    assert after[0].versions == [(1, 0)]


def pair_of(backend: Any, run: Any) -> Any:
    engine = HF().open(run)
    asyncio.run(engine.load(backend.publish(1, copy=True)))
    return engine


def test_a_stop_string_ends_a_reply_with_the_token_that_completes_it(make_run: Any) -> None:
    engine = pair(make_run())[1]
    free = wave(engine, [ask([40, 41], max_tokens=8)])[0]
    text = engine.tokenizer.decode(free.tokens_N[2:4].tolist(), skip_special=False)
    stopped = wave(engine, [ask([40, 41], max_tokens=8, stop=(text,))])[0]
    assert stopped.finish == "stop" and len(stopped.tokens_N) <= 4
    assert stopped.tokens_N.tolist() == free.tokens_N[: len(stopped.tokens_N)].tolist()
    assert text in engine.tokenizer.decode(stopped.tokens_N.tolist(), skip_special=False)


def test_the_context_is_a_limit_and_not_an_error(make_run: Any) -> None:
    engine = pair(make_run())[1]
    full, nearly = wave(engine, [ask([9] * 512), ask([9] * 510)])
    assert full.finish == "length" and len(full.tokens_N) == 0
    assert len(nearly.tokens_N) <= 2


def test_a_request_for_nothing_is_refused(make_run: Any) -> None:
    engine = pair(make_run())[1]
    with pytest.raises(DataError, match="max_tokens 0"):
        wave(engine, [ask([9, 9], max_tokens=0)])


def test_abort_ends_a_running_generation(make_run: Any) -> None:
    engine = pair(make_run())[1]

    async def scenario() -> list[Any]:
        requests = [ask([9, 9], a, max_tokens=480) for a in range(2)]
        task = asyncio.create_task(engine.generate_wave(requests))
        await asyncio.sleep(0.05)
        await engine.abort([r.key for r in requests])
        return await task

    assert {reply.finish for reply in asyncio.run(scenario())} <= {"aborted", "stop"}


def test_the_loop_stays_alive_while_a_wave_runs(make_run: Any) -> None:
    engine = pair(make_run())[1]

    async def scenario() -> int:
        task = asyncio.create_task(engine.generate_wave([ask([9, 9], a, max_tokens=60) for a in range(8)]))
        beats = 0
        while not task.done():
            await asyncio.sleep(0.001)
            beats += 1
        return beats

    assert asyncio.run(scenario()) > 3


def test_answers_come_as_they_end_and_are_those_of_the_whole_wave(make_run: Any) -> None:
    engine = pair(make_run())[1]
    requests = [ask([9, 9], a, max_tokens=n) for a, n in enumerate((40, 5, 300, 1, 20))]

    async def scenario() -> list[tuple[int, Any]]:
        return [(place, reply) async for place, reply in engine.stream_wave(requests)]

    told, whole = asyncio.run(scenario()), wave(engine, requests)
    lengths = [len(reply.tokens_N) for _, reply in told]
    assert lengths == sorted(lengths) and len(set(lengths)) > 2
    assert sorted(place for place, _ in told) == [0, 1, 2, 3, 4]
    for place, reply in told:
        assert reply.tokens_N.tolist() == whole[place].tokens_N.tolist() and reply.finish == whole[place].finish
        assert np.array_equal(reply.logp_N, whole[place].logp_N)


def test_a_wave_that_is_left_early_stops_playing(make_run: Any) -> None:
    engine = pair(make_run())[1]

    async def scenario() -> None:
        requests = [ask([9, 9], a, temperature=0.0, max_tokens=n) for a, n in enumerate((480, 1))]
        async with contextlib.aclosing(engine.stream_wave(requests)) as answers:
            async for place, _ in answers:
                assert place == 1
                break
        assert not engine._waves
        await engine.generate(ask([9, 9], max_tokens=1))  # the one thread is free again

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_load_in_flight_is_stamped_where_it_happened(make_run: Any) -> None:
    backend, engine = pair(make_run(), copy=True)
    weights = backend.publish(1, copy=True)

    async def scenario() -> Any:
        # a request that cannot stop early: greedy decoding of a random model runs into its limit
        task = asyncio.create_task(engine.generate_wave([ask([9, 9], temperature=0.0, max_tokens=400)]))
        await asyncio.sleep(0.05)
        receipt = await engine.load(weights, in_flight="continue")
        return receipt, (await task)[0]

    receipt, reply = asyncio.run(scenario())
    assert receipt.version == 1 and engine.version == 1
    assert [version for version, _ in reply.versions] in ([0], [0, 1])
    assert sorted(start for _, start in reply.versions) == [start for _, start in reply.versions]


@pytest.mark.parametrize("in_flight", ["finish", "continue"])
def test_a_load_nobody_waits_for_any_more_is_not_begun(make_run: Any, in_flight: Any) -> None:
    backend, engine = pair(make_run(), copy=True)
    weights = backend.publish(1, copy=True)

    async def scenario() -> Any:
        busy = threading.Event()
        held = engine._submit(busy.wait)
        loading = asyncio.create_task(engine.load(weights, in_flight=in_flight))
        await asyncio.sleep(0.05)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        busy.set()
        await held
        return (await engine.generate_wave([ask([9, 9])]))[0], loading.cancelled()

    reply, cancelled = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert cancelled and reply.versions == [(0, 0)] and engine.version == 0


def test_receipts_say_how_they_know(make_run: Any, tmp_path: Any) -> None:
    from trinity_core.algo.digest import digest_tensors
    from trinity_core.run.deliver import from_folder, to_folder

    backend = Local().open(make_run())
    engine = HF().open(make_run())
    assert engine.version == -1
    assert asyncio.run(engine.load(backend.publish(0, copy=False))).evidence == "same_object"
    sent = backend.publish(1, copy=True)
    sent = dataclasses.replace(sent, digest=digest_tensors(sent.payload.items()))
    receipt = asyncio.run(engine.load(sent))
    assert (receipt.version, receipt.evidence, receipt.digest) == (1, "digest", sent.digest)
    to_folder(sent, tmp_path / "v1")
    receipt = asyncio.run(engine.load(from_folder(tmp_path / "v1")))
    assert receipt.digest == sent.digest
    with pytest.raises(DeliveryError, match="kind 'handle'"):
        asyncio.run(engine.load(Weights(2, "handle", object())))
    with pytest.raises(ModelError, match=r"model\.path"):
        asyncio.run(engine.load(Weights(2, "tensors", {"w": torch.zeros(1)})))


def test_broken_weights_are_an_error_and_not_a_token() -> None:
    with pytest.raises(RunError, match="not finite"):
        draw(torch.full((1, 4), float("nan")), torch.tensor([0.5]), [Sampling()])


def test_tokens_follow_the_distribution() -> None:
    # p = softmax(log [.1, .2, .3, .4]): cdf .1 .3 .6 1; the number that falls on a border belongs to the token above it
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)).repeat(5, 1)
    token_R, logp_R = draw(
        logits, torch.tensor([0.0, 0.09, 0.11, 0.59, 1 - 2**-53], dtype=torch.float64), [Sampling()] * 5
    )
    assert token_R.tolist() == [0, 0, 1, 2, 3]
    assert torch.allclose(logp_R, logits[0, token_R])


def test_truncation_keeps_the_fewest_that_reach_the_mass_and_leaves_logp_alone() -> None:
    # falling: .4 .3 .2 .1; top_p .7 keeps .4 and .3 (token 3, 2), top_k 1 keeps token 3
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)).repeat(3, 1)
    samplings = [Sampling(top_p=0.7), Sampling(top_k=1), Sampling(top_p=0.75)]
    token_R, logp_R = draw(logits, torch.zeros(3, dtype=torch.float64), samplings)
    assert token_R.tolist() == [2, 3, 1]
    assert torch.allclose(logp_R.exp(), torch.tensor([0.3, 0.4, 0.2], dtype=torch.float64))
