"""Estimators of KL(π ‖ ref) at the sampled token, for numpy arrays and torch tensors alike, and an adaptive coefficient.

With ``u = ref − logp`` and all expectations over the policy that samples. A *term* of the loss is differentiated where it
stands, so its gradient is E[∇k]; in the *reward* it is a number, and the policy gradient makes it E[k ∇logp]. Their sum is
the gradient of E[k], what a sampler that moves along would give. On-policy these are gradients of:

============  =====================  ==============  ==========================  =================================  ============
name          k                      E[k]            as a term, E[∇k]            in the reward, E[k ∇logp]          sum, ∇E[k]
============  =====================  ==============  ==========================  =================================  ============
k1            ``−u``                 KL(π ‖ ref)     0 (the score has mean 0)    KL(π ‖ ref)                        KL(π ‖ ref)
k2            ``½ u²``               another number  KL(π ‖ ref)                 no divergence's                    ½ E[u²]
k3            ``exp(u) − 1 − u``     KL(π ‖ ref)     KL(ref ‖ π)                 KL(π ‖ ref) − KL(ref ‖ π)          KL(π ‖ ref)
abs           ``|u|``                another number  Σ|π − ref| (twice TV)       no divergence's                    E[|u|]
corrected_k3  ``clip(r, 0, 2)·k3``   KL(π ‖ ref)     KL(π ‖ ref)                 –                                  –
============  =====================  ==============  ==========================  =================================  ============

So k1 belongs in the reward, k2 and corrected_k3 in the loss; k3 as a term pulls towards the reference by the other KL.
corrected_k3 (DeepSeek-V3.2, arXiv:2512.02556, sec. 3.1) differentiates the ratio ``r = π / π_old`` too, which brings the missing
score part: value and gradient stay those of KL(π ‖ ref) where the samples are another policy's, as long as ``r < 2``.
Sources: Schulman, *Approximating KL divergence*, 2020. k3 clamps ``u`` to ±20 inside and its value to 10.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trinity_core.errors import ConfigError, DataError

LARGEST_RATIO = 2.0
"""Where corrected_k3 clips its ratio: above, it has no gradient through the ratio."""


def _plain(x: Any) -> bool:
    return isinstance(x, (np.ndarray, np.generic, float, int))


def _exp(x: Any) -> Any:
    return np.exp(x) if _plain(x) else x.exp()


def _clip(x: Any, low: float | None, high: float | None) -> Any:
    return np.clip(x, low, high) if _plain(x) else x.clamp(low, high)


def k1(logp: Any, ref: Any) -> Any:
    """``logp − ref``.

    >>> k1(np.float64(-1.0), np.float64(-1.5))
    np.float64(0.5)
    """
    return logp - ref


def k2(logp: Any, ref: Any) -> Any:
    """``½ (logp − ref)²``.

    >>> k2(np.float64(-1.0), np.float64(-1.5))
    np.float64(0.125)
    """
    return 0.5 * (logp - ref) ** 2


def k3(logp: Any, ref: Any) -> Any:
    """``exp(ref − logp) − 1 − (ref − logp)``, ±20 in, 10 out.

    >>> [round(float(k3(np.float64(0.0), np.float64(u))), 6) for u in (-0.1, 0.1, 1.0)]
    [0.004837, 0.005171, 0.718282]
    """
    u = _clip(ref - logp, -20.0, 20.0)
    return _clip(_exp(u) - 1.0 - u, None, 10.0)


def absolute(logp: Any, ref: Any) -> Any:
    """``|logp − ref|``.

    >>> absolute(np.float64(-2.0), np.float64(-1.5))
    np.float64(0.5)
    """
    return abs(logp - ref)


def corrected_k3(logp: Any, ref: Any, ratio: Any) -> Any:
    """``clip(r, 0, 2) · k3`` with ``r = π / π_old``, differentiated.

    >>> [round(float(corrected_k3(np.float64(0.0), np.float64(1.0), np.float64(r))), 6) for r in (0.5, 1.0, 4.0)]
    [0.359141, 0.718282, 1.436564]
    """
    return _clip(ratio, 0.0, LARGEST_RATIO) * k3(logp, ref)


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3, "abs": absolute}
NAMES = (*ESTIMATORS, "corrected_k3")


def estimate(name: str, logp: Any, ref: Any, *, ratio: Any = None) -> Any:
    """The estimator called ``name``. ``ratio``: policy to the one that sampled, with gradient; corrected_k3 reads it."""
    if name not in NAMES:
        raise ConfigError(f"algorithm.kl.estimator: {name!r} is unknown. Choose one of {', '.join(NAMES)}")
    if name != "corrected_k3":
        return ESTIMATORS[name](logp, ref)
    if ratio is None:
        raise ConfigError(
            "algorithm.kl.estimator: corrected_k3 needs the ratio to the policy that sampled, so it is a term of the loss "
            "only. Set algorithm.kl.where=loss, or estimator=k1 in the reward"
        )
    return corrected_k3(logp, ref, ratio)


def adapt(coef: float, kl: float, target: float, horizon: float, n: int) -> float:
    """``coef · (1 + clip(kl / target − 1, ±0.2) · n / horizon)``: the next coefficient after a lease of ``n`` attempts
    (Ziegler et al., arXiv:1909.08593, sec. 2.2, with the step given as a horizon). ``kl``: nats per token, as ``target``.

    Twice the target over 256 attempts at a horizon of 10 000: the error is cut to .2, so .1 · (1 + .2 · .0256):

    >>> round(adapt(0.1, 0.2, 0.1, 10000, 256), 6)
    0.100512
    """
    if target <= 0 or horizon <= 0:
        raise ConfigError(
            f"algorithm.kl.target={target}, algorithm.kl.horizon={horizon}: an adaptive coefficient needs both above 0"
        )
    if 0.2 * n >= horizon:
        raise ConfigError(
            f"algorithm.kl.horizon: {horizon:g} is too short for {n} attempts a step: the coefficient could reach 0. "
            f"Give more than {0.2 * n:g}"
        )
    if not math.isfinite(kl):
        raise DataError(f"algorithm.kl.target: the KL that was measured is {kl}, and the coefficient cannot follow it")
    return coef * (1.0 + min(max(kl / target - 1.0, -0.2), 0.2) * n / horizon)
