"""Rules of backends: the same gradient however a batch is cut, the same weights after a resume, and nothing moves unseen.

A backend that is not for the reference model says what to put beside it: ``beside = ("model=fake", "engine=fake")``.
One that cuts updates into micro-batches by a field ``micro_tokens`` has the cut tested.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from trinity_core.config.schema import Model
from trinity_core.protocols import Backend
from trinity_core.testing.fakes import Digits
from trinity_core.testing.one_update import (
    Broken,
    PolicyGradient,
    WholeBatch,
    batch_for,
    effect,
    logp,
    opened,
    require_close,
    small_cuts,
    trained_once,
)
from trinity_core.testing.play import sample_groups
from trinity_core.testing.rules import NotApplicable, require
from trinity_core.testing.stage import BESIDE, carried, kit_run, partner, tolerance
from trinity_core.types import Sampling

__all__ = ["BESIDE", "RULES", "run_for"]

run_for = kit_run


# --- rules: what is computed ------------------------------------------------------------------------------------------


def agrees_with_the_engine(component: Backend, tmp: Path) -> None:
    """The trainer's log-probabilities of sampled tokens are the sampler's, at every temperature."""
    from trinity_core.algo.assemble import assemble

    with opened(component, tmp) as backend:
        made = partner(component, "engine")
        engine = made.open(kit_run(made, tmp))
        try:
            asyncio.run(engine.load(carried(made, backend, 0, tmp)))
            for temperature in (1.0, 0.6):
                sampling = Sampling(temperature=temperature, max_tokens=6)
                batch = assemble(sample_groups(engine, Digits(), range(4), 4, sampling=sampling), seed=0, step=0)
                found_N = backend.measure(batch, "policy", frozenset({"logp"}))["logp"]
                # stored log-probabilities are float32
                require_close(
                    f"logp at T={temperature}", found_N, batch.sampler_logp_N, max(tolerance(component, tmp), 2e-6)
                )
        finally:
            engine.close()


def first_ratio_is_one(component: Backend, tmp: Path) -> None:
    """With old log-probabilities of the same forward the ratio is exactly 1 (LPM-11)."""
    with opened(component, tmp) as backend:
        result = trained_once(backend)
        require(result.stats["metric/off"] == 0.0, f"mean |ratio - 1| is {result.stats['metric/off']:.2e}, not 0")


def measured_is_forward(component: Backend, tmp: Path) -> None:
    """Measuring before an update and the update's own forward agree: one path, no dropout in either."""
    from trinity_core.algo.objective import Objective

    with opened(component, tmp) as backend:
        batch = batch_for(backend)
        batch.measured["old_logp"] = backend.measure(batch, "policy", frozenset({"logp"}))["logp"]
        result = backend.update(batch, "policy", Objective.of(PolicyGradient(), old="measured"), lr_scale=1.0)
        require_close("ratio", result.stats["metric/off"], 0.0, tolerance(component, tmp))


def order_does_not_matter(component: Backend, tmp: Path) -> None:
    """A sequence's arrays are the same alone, among others and in another order."""
    with opened(component, tmp) as backend:
        batch = batch_for(backend)
        whole_N = logp(backend)
        for rows in (np.arange(len(batch))[::-1], np.array([7]), np.array([3, 0])):
            part = batch.select(rows)
            found_N = backend.measure(part, "policy", frozenset({"logp"}))["logp"]
            expected_N = np.concatenate([whole_N[batch.row_N == row] for row in rows])
            require_close(f"logp of rows {rows.tolist()}", found_N, expected_N, tolerance(component, tmp))


def entropy_is_the_distribution_s(component: Backend, tmp: Path) -> None:
    """Entropy lies between 0 and log V, and above it no -logp of the likeliest token would fit."""
    if "entropy" not in component.provides:
        raise NotApplicable("it does not provide entropy")
    with opened(component, tmp) as backend:
        found = backend.measure(batch_for(backend), "policy", frozenset({"logp", "entropy"}))
        require(len(found["entropy"]) == len(found["logp"]), "entropy is not one number per action token")
        top = float(np.log(backend.tokenizer.vocab_size)) + 1e-6
        require(bool(((found["entropy"] >= 0) & (found["entropy"] <= top)).all()), "entropy outside 0 … log V")


def cut_does_not_change_the_gradient(component: Backend, tmp: Path) -> None:
    """Loss, gradient norm and weights after a step are the same in one micro-batch and in twelve."""
    one, many = effect(component, tmp, PolicyGradient()), effect(small_cuts(component), tmp, PolicyGradient())
    for name, found, expected in zip(("loss", "gradient norm", "logp after the step"), many, one, strict=True):
        require_close(name, found, expected, tolerance(component, tmp))


def two_passes_give_the_same_gradient(component: Backend, tmp: Path) -> None:
    """A loss over the whole batch under a small budget (two passes) is the loss in one piece."""
    one, two = effect(component, tmp, PolicyGradient()), effect(small_cuts(component), tmp, WholeBatch())
    for name, found, expected in zip(("loss", "gradient norm", "logp after the step"), two, one, strict=True):
        require_close(name, found, expected, tolerance(component, tmp))


# --- rules: what moves ------------------------------------------------------------------------------------------------


def a_step_moves_weights(component: Backend, tmp: Path) -> None:
    """After a step weights differ, the digest says so, and ``moved`` counts them (LPM-14)."""
    with opened(component, tmp) as backend:
        before, logp_N = backend.digest(), logp(backend)
        result = trained_once(backend)
        require(
            result.grad_norm > 0 and np.isfinite(result.loss), f"gradient norm {result.grad_norm}, loss {result.loss}"
        )
        require(0 < result.moved <= 1, f"moved is {result.moved}: the share of trained weights whose value changed")
        require(backend.digest() != before, "the digest is the same after a step")
        require(not np.array_equal(logp(backend), logp_N), "log-probabilities are the same after a step")


def a_step_follows_the_gradient(component: Backend, tmp: Path) -> None:
    """What was rewarded above its group's mean becomes likelier than what was below."""
    with opened(component, tmp) as backend:
        batch, before_N = batch_for(backend), logp(backend)
        trained_once(backend)
        gain = float(((logp(backend) - before_N) * batch.advantage_N).sum())
        require(gain > 0, f"Σ advantage × change of logp is {gain:.3g} after a step, so the step went uphill")


def no_learning_rate_moves_nothing(component: Backend, tmp: Path) -> None:
    with opened(component, tmp) as backend:
        before = backend.digest()
        result = trained_once(backend, lr_scale=0.0)
        require(backend.digest() == before and result.moved == 0, f"lr_scale=0 moved {result.moved} of the weights")


def a_broken_gradient_is_skipped(component: Backend, tmp: Path) -> None:
    """A loss that is not finite changes nothing and says why; the next step is as if it never was."""
    with opened(component, tmp) as backend:
        before = backend.digest()
        result = trained_once(backend, Broken())
        require(result.skipped, "an update with a loss of NaN was not skipped")
        require(backend.digest() == before, "an update with a loss of NaN changed weights")
        trained_once(backend)
        after = backend.digest()
    with opened(component, tmp) as backend:
        trained_once(backend)
        require(backend.digest() == after, "the step after a skipped one is not the step without it")


def the_reference_stays(component: Backend, tmp: Path) -> None:
    """The reference is the policy as it was before the first step."""
    if "ref_logp" not in component.provides:
        raise NotApplicable("it has no reference")
    with opened(component, tmp) as backend:
        before_N = logp(backend)
        trained_once(backend)
        require_close("the reference's logp", logp(backend, "reference"), before_N, tolerance(component, tmp))


# --- rules: what is kept ----------------------------------------------------------------------------------------------


def a_copy_stays(component: Backend, tmp: Path) -> None:
    """Weights published as a copy do not follow later steps."""
    from trinity_core.algo.digest import digest_tensors

    with opened(component, tmp) as backend:
        weights = backend.publish(0, copy=True)
        require(
            weights.version == 0 and weights.kind != "module",
            f"copy=True gave kind {weights.kind!r}, version {weights.version}",
        )
        if weights.kind != "tensors":
            raise NotApplicable(f"it publishes a copy as {weights.kind}")
        before = digest_tensors(weights.payload.items())
        require(weights.digest in (None, before), "the digest sent is not that of the tensors sent")
        trained_once(backend)
        require(digest_tensors(weights.payload.items()) == before, "a published copy changed with the next step")
        later = backend.publish(1, copy=True)
        require(
            digest_tensors(later.payload.items()) != before, "the weights published after a step are those before it"
        )


def save_and_load_go_on_bit_for_bit(component: Backend, tmp: Path) -> None:
    """Two steps, or one step, save, load elsewhere, one step: the same bits, optimizer included."""
    folder = tmp / "saved"
    folder.mkdir()
    with opened(component, tmp) as backend:
        trained_once(backend, seed=1)
        backend.save(folder)
        saved = backend.digest()
        trained_once(backend, seed=2)
        expected = backend.digest()
    with opened(component, tmp) as backend:
        backend.load(folder)
        require(backend.digest() == saved, "the weights after load are not the weights that were saved")
        trained_once(backend, seed=2)
        require(backend.digest() == expected, "the step after load is another one: optimizer or random state was lost")


def a_snapshot_is_of_its_moment(component: Backend, tmp: Path) -> None:
    """What is written from copies after another step is what ``save`` wrote before it."""
    now, later = tmp / "now", tmp / "later"
    now.mkdir()
    later.mkdir()
    with opened(component, tmp) as backend:
        trained_once(backend, seed=1)
        if (write := backend.snapshot()) is None:
            raise NotApplicable("it takes no snapshots")
        backend.save(now)
        trained_once(backend, seed=2)
        write(later)
    for file in now.rglob("*"):
        there = later / file.relative_to(now)
        require(there.exists(), f"a snapshot writes no {there.name}, which save writes")
        require(file.is_dir() or file.read_bytes() == there.read_bytes(), f"{there.name} changed with the next step")


def loading_reaches_what_was_published(component: Backend, tmp: Path) -> None:
    """Weights shared before a load are the loaded ones after it."""
    folder = tmp / "saved"
    folder.mkdir()
    with opened(component, tmp) as backend:
        try:
            weights = backend.publish(0, copy=False)
        except NotImplementedError:
            raise NotApplicable("it shares no module") from None
        if weights.kind != "module":
            raise NotApplicable("it shares no module")
        backend.save(folder)
        trained_once(backend)
        backend.load(folder)
        require(backend.publish(1, copy=False).payload is weights.payload, "load replaced the shared module")


def an_export_is_the_policy(component: Backend, tmp: Path) -> None:
    """A run whose ``model.path`` is the exported folder starts from the trained policy."""
    folder = tmp / "exported"
    folder.mkdir()
    with opened(component, tmp) as backend:
        trained_once(backend)
        backend.export(folder)
        expected_N = logp(backend)
    require(any(folder.iterdir()), "export wrote nothing")
    with opened(component, tmp, model=str(folder)) as backend:
        require_close("logp of the exported policy", logp(backend), expected_N, max(tolerance(component, tmp), 1e-5))


def says_what_it_is(component: Backend, tmp: Path) -> None:
    """The plan shows parameters, trained parameters, dtype and device."""
    with opened(component, tmp) as backend:
        told = backend.describe()
        missing = {"parameters", "trained", "dtype", "device"} - set(told)
        require(not missing, f"describe() lacks {', '.join(sorted(missing))}")
        require(0 < told["trained"] <= told["parameters"], f"trained {told['trained']} of {told['parameters']}")


def closes_twice(component: Backend, tmp: Path) -> None:
    with opened(component, tmp) as backend:
        backend.close()
        backend.close()


def refuses_in_words(component: Backend, tmp: Path) -> None:
    """``refuse`` answers ``None`` or a sentence about the shared node, never raises."""
    config = kit_run(component, tmp).config
    for model in (config.model, Model("no/such/model"), dataclasses.replace(config.model, chat_template="none.jinja")):
        answer = component.refuse(dataclasses.replace(config, model=model))
        require(answer is None or (isinstance(answer, str) and answer), f"refuse() answered {answer!r}")


RULES: dict[str, Callable[..., None]] = {
    "agrees with the engine on sampled tokens": agrees_with_the_engine,
    "the first ratio is exactly 1": first_ratio_is_one,
    "measuring and training forward agree": measured_is_forward,
    "order and packing change nothing": order_does_not_matter,
    "entropy is in its range": entropy_is_the_distribution_s,
    "micro-batches change nothing": cut_does_not_change_the_gradient,
    "two passes change nothing": two_passes_give_the_same_gradient,
    "a step moves weights and says so": a_step_moves_weights,
    "a step follows the gradient": a_step_follows_the_gradient,
    "no learning rate moves nothing": no_learning_rate_moves_nothing,
    "a gradient that is not finite is skipped": a_broken_gradient_is_skipped,
    "the reference stays": the_reference_stays,
    "a published copy stays": a_copy_stays,
    "save and load go on bit for bit": save_and_load_go_on_bit_for_bit,
    "a snapshot is of its moment": a_snapshot_is_of_its_moment,
    "load keeps the shared module": loading_reaches_what_was_published,
    "an export is the policy": an_export_is_the_policy,
    "says what it is": says_what_it_is,
    "refuses in words": refuses_in_words,
    "closes twice": closes_twice,
}
