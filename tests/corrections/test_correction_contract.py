"""Each rule of the contract of corrections catches what it is for."""

from __future__ import annotations

import pytest
import torch

from trinity_core.protocols import Correction
from trinity_core.testing.contracts.correction import RULES

torch.set_num_threads(1)


def bad(compute, **fields):
    return type("Bad", (Correction,), {"__call__": lambda self, batch: compute(batch), **fields})()


def keep_all(batch):
    return torch.ones_like(batch.seq_N, dtype=torch.bool)


def ratio_N(batch, old_N=None):
    old_N = batch.detach(batch.old_logp_N) if old_N is None else old_N
    return (old_N - batch.sampler_logp_N).nan_to_num(nan=0.0).clamp(max=0.7).exp()


def sequence_N(batch, fill):
    d_N = (batch.detach(batch.old_logp_N) - batch.sampler_logp_N).nan_to_num(nan=fill)
    return batch.spread(batch.seq_mean(d_N)).clamp(max=0.7).exp()


MISTAKES = {
    "a live weight": ("weights are constants", bad(lambda b: (ratio_N(b, b.logp_N), keep_all(b)))),
    "a detached live weight": (
        "weights leave the ratio to the loss",
        bad(lambda b: (ratio_N(b, b.detach(b.logp_N)), keep_all(b))),
    ),
    "overflow": (
        "gives weight and keep",
        bad(lambda b: ((b.detach(b.old_logp_N) - b.sampler_logp_N).exp(), keep_all(b))),
    ),
    "keep as numbers": ("gives weight and keep", bad(lambda b: (ratio_N(b), torch.ones_like(b.logp_N)))),
    "acts without need": ("agreement changes nothing", bad(lambda b: (0.5 * ratio_N(b), keep_all(b)))),
    "drops without need": (
        "agreement changes nothing",
        bad(lambda b: (ratio_N(b), b.detach(b.old_logp_N) > -2.0)),
    ),
    "normalised over the micro-batch": (
        "parts change nothing",
        bad(lambda b: (ratio_N(b) / ratio_N(b).mean(), keep_all(b))),
    ),
    "normalised over the micro-batch, cut": (
        "cuts and order change nothing",
        bad(lambda b: (ratio_N(b) / ratio_N(b).mean(), keep_all(b))),
    ),
    "normalised over the micro-batch, declared": (
        "is declared right",
        bad(lambda b: (ratio_N(b) / ratio_N(b).mean(), keep_all(b)), scope="sequence"),
    ),
    "a mean over all tokens, given ones too": (
        "given tokens weigh on no other",
        bad(lambda b: (sequence_N(b, 0.0), keep_all(b)), scope="sequence"),
    ),
    "given tokens as NaN in a sum": (
        "given tokens are untouched",
        bad(lambda b: (sequence_N(b, torch.nan), keep_all(b)), scope="sequence"),
    ),
    "a sequence called tokens": ("is declared right", bad(lambda b: (sequence_N(b, 0.0), keep_all(b)))),
    "tokens called a sequence": ("is declared right", bad(lambda b: (ratio_N(b), keep_all(b)), scope="sequence")),
    "weights that only drop": (
        "is declared right",
        bad(lambda b: (torch.ones_like(b.sampler_logp_N), ratio_N(b) < 1.9)),
    ),
    "a mask that weighs": ("is declared right", bad(lambda b: (ratio_N(b), keep_all(b)), weighs=False)),
    "an unknown scope": ("is declared right", bad(lambda b: (ratio_N(b), keep_all(b)), scope="group")),
    "makes up for what it drops": (
        "parts change nothing",
        bad(lambda b: (ratio_N(b) * (1.0 / (1.0 - (ratio_N(b) < 0.5).double().mean())), ratio_N(b) >= 0.5)),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistaken_correction_is_caught(mistake):
    rule, component = MISTAKES[mistake]
    with pytest.raises(AssertionError):
        RULES[rule](component)


def test_the_same_rules_pass_for_the_right_correction():
    right = bad(lambda b: (ratio_N(b), keep_all(b)))
    for name, rule in RULES.items():
        if name != "pickles":  # a class made here has no importable name
            rule(right)
