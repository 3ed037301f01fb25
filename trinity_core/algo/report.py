"""What an objective says about a micro-batch. The keys are fixed by its parts, never by the data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trinity_core.algo import kl
from trinity_core.algo.batch import LossOutput, TrainBatch
from trinity_core.algo.loss_batch import LossBatch
from trinity_core.algo.stats import Stats

RENAMED = {"clipped_high": "clip/high", "clipped_low": "clip/low"}
"""Metrics of losses that all of them have under one name."""


def report(
    micro: TrainBatch,
    batch: LossBatch,
    output: LossOutput,
    shares: Mapping[str, Tensor],
    corrections: Mapping[str, tuple[Tensor, Tensor, Tensor]],
) -> Stats:
    """Statistics of one micro-batch: over tokens that count in the loss, so that metrics obey the loss's own mask.

    The names are in ``docs/metrics.md``, the same for every algorithm. A loss's metrics are ``metric/<name>``, but its
    ``clipped_high`` and ``clipped_low`` are ``clip/high`` and ``clip/low``, whatever it clips.
    """
    stats = Stats()
    counted_N = micro.token_weight["all"] != 0
    for name, share in shares.items():
        stats.total(f"loss/{name}", float(share.detach()))
    stats.total("loss", sum(float(share.detach()) for share in shares.values()))
    stats.total("tokens", float(counted_N.sum()))
    stats.mean("kept", counted_N)
    if "logp" in batch._outputs:  # a critic's forward has none
        _divergences(stats, micro, batch, counted_N)
    entropy = batch._outputs.get("entropy", batch._outputs.get("entropy_value"))
    if entropy is not None or "entropy" in micro.measured:
        stats.mean("entropy", (_numpy(entropy) if entropy is not None else micro.measured["entropy"])[counted_N])
    if micro.advantage_N is not None:
        stats.mean("advantage", micro.advantage_N[counted_N])
    for name, metric in output.metrics.items():
        values = _numpy(metric)
        values = values[_counted(values, micro, output)]
        stats.mean(RENAMED.get(name, f"metric/{name}"), values[~np.isnan(values)])
    sampled_N = counted_N[~np.isnan(micro.sampler_logp_N)]
    for name, parts in corrections.items():
        weight_N, keep_N, truncated_N = (_numpy(part)[sampled_N] for part in parts)
        stats.mean(f"correction/{name}", weight_N[keep_N > 0])
        stats.most(f"correction/{name}/max", weight_N[keep_N > 0])
        stats.mean(f"correction/{name}/truncated", truncated_N)
        stats.mean(f"correction/{name}/kept", keep_N)
    return stats


def _divergences(stats: Stats, micro: TrainBatch, batch: LossBatch, counted_N: NDArray[np.bool_]) -> None:
    """How far the policy is from who sampled, from where the step began and from the reference: own tokens alone, since what
    others wrote says nothing about any of these."""
    logp_N = _numpy(batch.logp_N)
    others = {"sampler": micro.sampler_logp_N.astype(np.float64), "old": _old(micro, batch)}
    if "ref_logp" in micro.measured:
        others["ref"] = micro.measured["ref_logp"]
    own_N = counted_N & (micro.population_B[micro.row_N] == 1) & np.isfinite(logp_N)
    for name, other_N in others.items():
        if other_N is None:
            continue
        here_N = own_N & np.isfinite(other_N)
        # old and sampler are who acted: KL(old ‖ π). The reference is where π should stay: KL(π ‖ ref).
        of_N, to_N = (logp_N, other_N) if name == "ref" else (other_N, logp_N)
        stats.mean(f"kl/{name}", kl.k1(of_N[here_N], to_N[here_N]))
        stats.mean(f"kl/{name}_k3", kl.k3(of_N[here_N], to_N[here_N]))
        if name == "old":
            stats.ratios("ratio", logp_N[here_N] - other_N[here_N])


def _old(micro: TrainBatch, batch: LossBatch) -> NDArray[np.float64] | None:
    """Old log-probabilities, also where no part of the loss read them; ``None`` where nobody measured them."""
    if "old" in batch._cache:
        return _numpy(batch._cache["old"])
    if batch._old == "forward":
        return _numpy(batch.logp_N)
    return micro.measured.get("old_logp")


def _counted(values: NDArray[np.float64], micro: TrainBatch, output: LossOutput) -> NDArray[np.bool_]:
    """Which of a metric's values count: those of its unit (the first term's where the size says so) with a weight."""
    weights = {
        "token": micro.token_weight["all"],
        "sequence": micro.sequence_weight["all"],
        "pair": micro.pair_weight["all"],
    }
    first = output.terms[0].unit if output.terms else "token"
    for unit in (first, "token", "sequence", "pair"):
        if values.shape == weights[unit].shape:
            counted: NDArray[np.bool_] = weights[unit] != 0
            return counted
    raise ValueError(f"a metric of shape {values.shape} is neither per token, per sequence nor per pair")


def _numpy(x: Tensor) -> NDArray[np.float64]:
    return x.detach().double().cpu().numpy()
