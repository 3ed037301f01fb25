"""Estimators of KL(π ‖ ref) at the sampled token, for numpy arrays and torch tensors alike.

With ``u = ref − logp``, and gradients on-policy (in expectation over π, at the policy that samples):

===  =====================  ==========================================================================================
k1   ``−u``                 value unbiased; as a loss term its gradient is 0 (the score has mean 0): in the reward only
k2   ``½ u²``               value biased; gradient is exactly that of KL(π ‖ ref)
k3   ``exp(u) − 1 − u``     value unbiased and ≥ 0; gradient is that of KL(ref ‖ π), not of KL(π ‖ ref)
===  =====================  ==========================================================================================

Source: Schulman, *Approximating KL divergence*, 2020. k3 clamps ``u`` to ±20 inside and its value to 10.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trinity_core.errors import ConfigError


def _exp(x: Any) -> Any:
    return np.exp(x) if isinstance(x, (np.ndarray, np.generic, float, int)) else x.exp()


def _clip(x: Any, low: float | None, high: float | None) -> Any:
    return np.clip(x, low, high) if isinstance(x, (np.ndarray, np.generic, float, int)) else x.clamp(low, high)


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


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def estimate(name: str, logp: Any, ref: Any) -> Any:
    """The estimator called ``name``."""
    if name not in ESTIMATORS:
        raise ConfigError(f"algorithm.kl.estimator: {name!r} is unknown. Choose one of {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name](logp, ref)
