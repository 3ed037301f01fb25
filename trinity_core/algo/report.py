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


def report(
    micro: TrainBatch,
    batch: LossBatch,
    output: LossOutput,
    shares: Mapping[str, Tensor],
    corrections: Mapping[str, tuple[Tensor, Tensor, Tensor]],
) -> Stats:
    """Statistics of one micro-batch: over tokens that count in the loss, so that metrics obey the loss's own mask.

    ``loss``, ``loss/<term>`` · ``tokens``, ``kept`` · ``kl/old``, ``kl/sampler``, ``kl/ref`` (k1; ``…_k3``) ·
    ``ratio`` (``/min``, ``/max``) and ``log_ratio/p01, p50, p99`` · ``entropy`` · ``advantage`` · ``metric/<name>`` of the loss
    · ``correction/<name>`` (mean weight), ``…/truncated``, ``…/kept``.
    """
    stats = Stats()
    counted_N = micro.token_weight["all"] != 0
    for name, share in shares.items():
        stats.total(f"loss/{name}", float(share.detach()))
    stats.total("loss", sum(float(share.detach()) for share in shares.values()))
    stats.total("tokens", float(counted_N.sum()))
    stats.mean("kept", counted_N)
    has_logp = "logp" in batch._outputs  # a critic's forward has none
    logp_N = _numpy(batch.logp_N) if has_logp else np.full(micro.num_actions, np.nan)
    sources = {"sampler": micro.sampler_logp_N.astype(np.float64)} if has_logp else {}
    if has_logp and "ref_logp" in micro.measured:
        sources["ref"] = micro.measured["ref_logp"]
    if "old" in batch._cache:
        sources["old"] = _numpy(batch._cache["old"])
    for name, other_N in sources.items():
        both_N = counted_N & np.isfinite(other_N) & np.isfinite(logp_N)
        # old and sampler are who acted: KL(old ‖ π). The reference is where π should stay: KL(π ‖ ref).
        of_N, to_N = (logp_N, other_N) if name == "ref" else (other_N, logp_N)
        stats.mean(f"kl/{name}", kl.k1(of_N[both_N], to_N[both_N]))
        stats.mean(f"kl/{name}_k3", kl.k3(of_N[both_N], to_N[both_N]))
        if name == "old":
            d_N = logp_N[both_N] - other_N[both_N]
            ratio_N = np.exp(np.clip(d_N, -20.0, 20.0))
            stats.mean("ratio", ratio_N)
            stats.least("ratio/min", ratio_N)
            stats.most("ratio/max", ratio_N)
            stats.histogram("log_ratio", d_N)
    entropy = batch._outputs.get("entropy", batch._outputs.get("entropy_value"))
    if entropy is not None or "entropy" in micro.measured:
        stats.mean("entropy", (_numpy(entropy) if entropy is not None else micro.measured["entropy"])[counted_N])
    if micro.advantage_N is not None:
        stats.mean("advantage", micro.advantage_N[counted_N])
    for name, metric in output.metrics.items():
        values = _numpy(metric)
        values = values[_counted(values, micro, output)]
        stats.mean(f"metric/{name}", values[~np.isnan(values)])
    for name, (weight_N, keep_N, truncated_N) in corrections.items():
        kept_N = _numpy(keep_N).astype(bool)
        weights_N = _numpy(weight_N)
        stats.mean(f"correction/{name}", weights_N)
        stats.most(f"correction/{name}/max", weights_N)
        stats.mean(f"correction/{name}/truncated", _numpy(truncated_N))
        stats.mean(f"correction/{name}/kept", kept_N)
    return stats


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
