"""Log-probabilities of sampler and trainer: the same token, the same temperature, the same weights."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from trinity_core.algo.assemble import assemble
from trinity_core.builtins.backends.fake import Fake
from trinity_core.builtins.engines.fake import FakeEngine
from trinity_core.testing.contracts.engine import best_lag
from trinity_core.testing.fakes import Digits, FakeRun
from trinity_core.testing.one_update import PolicyGradient, batch_for, objective, trained_once
from trinity_core.testing.play import sample_groups
from trinity_core.types import Sampling


@pytest.fixture
def pair():
    """A backend and an engine that shares its table."""
    run = FakeRun()
    backend, engine = Fake(noise=1.0).open(run), FakeEngine().open(run)
    asyncio.run(engine.load(backend.publish(0, copy=False)))
    return backend, engine


def both(pair, sampling: Sampling):
    """(sampler's, trainer's) log-probabilities of the same sampled tokens."""
    backend, engine = pair
    batch = assemble(sample_groups(engine, Digits(), range(5), 8, sampling=sampling), seed=0, step=0)
    return batch, batch.sampler_logp_N, backend.measure(batch, "policy", frozenset({"logp"}))["logp"]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_the_trainer_applies_the_temperature_of_the_call(pair, temperature):
    """LPM-01, LPM-02: at T = .6 the importance ratio is 1, not about 2."""
    _, sampler_N, trainer_N = both(pair, Sampling(temperature=temperature, max_tokens=6))
    assert np.exp(trainer_N - sampler_N) == pytest.approx(1.0, abs=2e-6)


def test_raw_log_probabilities_at_another_temperature_would_show(pair):
    """LPM-01: the check above can fail: without the temperature the ratios are off by a factor."""
    batch, sampler_N, _ = both(pair, Sampling(temperature=0.6, max_tokens=6))
    batch.temperature_N[:] = 1.0
    raw_N = pair[0].measure(batch, "policy", frozenset({"logp"}))["logp"]
    assert np.exp(raw_N - sampler_N).max() > 1.5 or np.exp(raw_N - sampler_N).min() < 0.67


def test_a_missing_log_probability_drops_the_token_and_is_counted(pair):
    """LPM-06: NaN from a sampler is neither a crash nor 0: the token is no action, and the batch says how many."""
    backend, engine = pair
    groups = sample_groups(engine, Digits(), range(3), 4)
    experience = groups[0].attempts[0].experiences[0]
    experience.logp_T[experience.action_T[0]] = np.nan
    batch = assemble(groups, seed=0, step=0)
    whole = sum(attempt.num_actions for group in groups for attempt in group.attempts)
    assert batch.num_actions == whole - 1 and batch.counts["missing_logp"] == 1
    assert np.isfinite(backend.measure(batch, "policy", frozenset({"logp"}))["logp"]).all()


def test_the_shift_by_one_is_found_in_either_direction(pair):
    """LPM-07: aligned at lags −1, 0, 1 the best is 0; a shifted list is told by its lag."""
    _, engine = pair
    groups = sample_groups(engine, Digits(), range(5), 8, sampling=Sampling(max_tokens=8))
    experiences = [attempt.experiences[0] for group in groups for attempt in group.attempts]
    told = [experience.logp_T[experience.action_T] for experience in experiences]
    scored = [asyncio.run(engine.score(e.tokens_T)).logp_T[e.action_T] for e in experiences]
    long = [n for n, logp in enumerate(told) if len(logp) >= 3]
    told, scored = [told[n] for n in long], [scored[n] for n in long]
    assert best_lag(told, scored) == 0
    assert best_lag([np.append(logp[1:], 0.0) for logp in told], scored) == -1
    assert best_lag([np.append(0.0, logp[:-1]) for logp in told], scored) == 1


def test_the_same_prompt_gives_another_answer_after_an_update(pair):
    """LPM-09: nothing that the engine remembers outlives the weights it was computed with."""
    backend, engine = pair
    tokens_T = np.array(backend.tokenizer.render(Digits()[0].messages) + backend.tokenizer.encode("12"), dtype=np.int32)
    before = asyncio.run(engine.score(tokens_T)).logp_T
    trained_once(backend)
    asyncio.run(engine.load(backend.publish(1, copy=True)))
    batch_tokens = batch_for(backend).tokens_T[: batch_for(backend).offsets_B1[1]]
    assert not np.array_equal(asyncio.run(engine.score(batch_tokens)).logp_T[1:], before[: len(batch_tokens) - 1])


def test_the_first_ratio_is_exactly_one(pair):
    """LPM-11: one update on fresh data has ratio 1 at every token, not nearly."""
    result = trained_once(pair[0])
    assert result.stats["ratio/min"] == result.stats["ratio/max"] == 1.0


def test_the_ratio_leaves_one_after_a_step(pair):
    """LPM-11: and the metric can tell: against the policy before the step, the next forward is not 1."""
    from trinity_core.algo.objective import Objective

    backend, _ = pair
    batch = batch_for(backend)
    batch.measured["old_logp"] = backend.measure(batch, "policy", frozenset({"logp"}))["logp"]
    backend.update(batch, "policy", objective(PolicyGradient()), lr_scale=1.0)
    result = backend.update(batch, "policy", Objective.of(PolicyGradient(), old="measured"), lr_scale=1.0)
    assert result.stats["ratio/max"] > 1.01


def test_each_step_says_what_share_of_weights_moved(pair):
    """LPM-14: an update that changes no stored value reports 0; here the states of the batch move and no others."""
    backend, _ = pair
    before = backend.table.logits_SV.copy()
    result = trained_once(backend)
    changed = backend.table.logits_SV != before
    assert result.moved == changed.mean() > 0
    # rounding that swallows the step is what the figure is for: a rate below the weights' spacing moves nothing
    assert trained_once(backend, lr_scale=1e-30).moved == 0
