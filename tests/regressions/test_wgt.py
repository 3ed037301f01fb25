"""Weights reach the sampler, and the sampler is who says so."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest

from trinity_core.algo.digest import digest_tensors
from trinity_core.builtins.backends.fake import Fake
from trinity_core.builtins.engines.fake import FakeEngine, LiveFakeEngine
from trinity_core.errors import DeliveryError
from trinity_core.run.deliver import deliver
from trinity_core.testing.fakes import FakeRun
from trinity_core.testing.one_update import trained_once
from trinity_core.types import Receipt, Weights


@pytest.fixture
def pair():
    run = FakeRun()
    return Fake(states=64).open(run), FakeEngine(states=64).open(run)


class Deaf(LiveFakeEngine):
    """Acknowledges the version and keeps the weights it had."""

    async def load(self, weights, *, in_flight="finish"):
        self.version = weights.version
        return Receipt(weights.version, "deaf", "digest", digest_tensors([("logits", self.table.logits_SV)]))


class Late(LiveFakeEngine):
    """Takes the weights but goes on under the version before."""

    async def load(self, weights, *, in_flight="finish"):
        receipt = await super().load(weights)
        return dataclasses.replace(receipt, version=weights.version - 1)


def test_weights_that_never_arrive_stop_the_run(pair):
    """WGT-01: an engine that keeps its old weights and counts versions is found at the first delivery after a step."""
    backend, _ = pair
    deaf = Deaf(FakeEngine(states=64).open(FakeRun()).table)
    asyncio.run(deliver(deaf, backend.publish(0, copy=True)))  # equal weights so far: nothing to find
    trained_once(backend)
    with pytest.raises(DeliveryError, match="holds other weights than were sent for version 1"):
        asyncio.run(deliver(deaf, backend.publish(1, copy=True)))


def test_a_tensor_left_out_is_noticed(pair):
    """WGT-01: a delivery that lacks a tensor is refused by the receiver, whatever the sender believes."""
    backend, engine = pair
    weights = backend.publish(0, copy=True)
    with pytest.raises(DeliveryError, match="one tensor 'logits'"):
        asyncio.run(deliver(engine, dataclasses.replace(weights, payload={})))


def test_one_flipped_bit_on_the_way_is_noticed(pair):
    """WGT-01: the digest is the receiver's own, of the tensors it holds."""
    backend, engine = pair
    weights = backend.publish(0, copy=True)
    bits = weights.payload["logits"].view(np.uint64)
    bits[3, 7] ^= np.uint64(1)
    with pytest.raises(DeliveryError, match="holds other weights"):
        asyncio.run(deliver(engine, weights))


def test_the_receiver_acknowledges_the_version(pair):
    """WGT-02: a version counts when the receiver says so; one that acknowledges another stops the run."""
    backend, engine = pair
    assert asyncio.run(deliver(engine, backend.publish(4, copy=True))).version == engine.version == 4
    late = Late(engine.table)
    with pytest.raises(DeliveryError, match="acknowledged version 4, version 5 was sent"):
        asyncio.run(deliver(late, backend.publish(5, copy=True)))


def test_a_refused_delivery_leaves_version_and_weights(pair):
    """WGT-02: the engine's version never runs ahead of its weights."""
    backend, engine = pair
    asyncio.run(deliver(engine, backend.publish(0, copy=True)))
    held = engine.table
    with pytest.raises(DeliveryError, match="adapter"):
        asyncio.run(engine.load(Weights(1, "adapter", "somewhere")))
    assert engine.version == 0 and engine.table is held


def test_tokens_say_which_weights_drew_them_after_every_delivery(pair):
    """WGT-02: staleness counts acknowledged versions, so every token carries the acknowledged one."""
    from trinity_core.testing.fakes import Digits
    from trinity_core.testing.play import sample_groups

    backend, engine = pair
    for version in range(3):
        asyncio.run(deliver(engine, backend.publish(version, copy=bool(version % 2))))
        assert {group.version for group in sample_groups(engine, Digits(), range(3), 2)} == {version}
        trained_once(backend)
