"""Each policy-gradient loss from its paper, one token at a time in Python floats: value, and slope by hand.

A function gives two lists over the action tokens of one experience: the values, and the derivative of their sum by each
token's log-probability. ``seen`` counts which case each token was.
"""

from __future__ import annotations

import math
from collections import Counter

from off_policy import Tokens, ratio


def _each(one: Tokens, rule):
    """``rule(logp, old, advantage) -> (value, slope)`` at each token."""
    pairs = [rule(logp, old, a) for logp, old, a in zip(one.logp, one.old, one.advantage)]
    return [value for value, _ in pairs], [slope for _, slope in pairs]


def _clipped(r: float, a: float, low: float, high: float, seen: Counter):
    """PPO's rule for a ratio: nothing is gained beyond the bound that the advantage pushes to."""
    if a > 0 and r > 1 + high:
        seen["clipped_high"] += 1
        return -a * (1 + high), 0.0
    if a < 0 and r < 1 - low:
        seen["clipped_low"] += 1
        return -a * (1 - low), 0.0
    seen["inside" if 1 - low <= r <= 1 + high else "outside, unclipped"] += 1
    return -a * r, -a * r


def ppo(one: Tokens, seen: Counter, *, low=0.2, high=0.2, dual=None):
    def rule(logp, old, a):
        r = ratio(logp - old)
        if dual is not None and a < 0 and r > dual:
            seen["dual"] += 1
            return -a * dual, 0.0
        return _clipped(r, a, low, high, seen)

    return _each(one, rule)


def importance_sampling(one: Tokens, seen: Counter):
    def rule(logp, old, a):
        seen["far" if abs(logp - old) > 1 else "near"] += 1
        return -a * ratio(logp - old), -a * ratio(logp - old)

    return _each(one, rule)


def sft(one: Tokens, seen: Counter):
    seen["given" if math.isnan(one.sampler[0]) else "sampled"] += len(one.logp)
    return [-logp for logp in one.logp], [-1.0] * len(one.logp)


def gspo(one: Tokens, seen: Counter, *, low=3e-4, high=4e-4):
    total = 0.0
    for logp, old in zip(one.logp, one.old):
        total += logp - old
    s = ratio(total / len(one.logp))
    # the mean over tokens of one value that all share: a token's slope is 1/n of the value's, n times
    return _each(one, lambda logp, old, a: _clipped(s, a, low, high, seen))


def cispo(one: Tokens, seen: Counter, *, low=None, high=0.28):
    def rule(logp, old, a):
        r = ratio(logp - old)
        w = min(r, 1 + high)
        if low is not None:
            w = max(w, 1 - low)
        seen["uncut" if w == r else "clipped_high" if a > 0 else "clipped_low" if a < 0 else "cut at 0"] += 1
        seen["cut above"] += w < r
        seen["cut below"] += w > r
        return -w * a * logp, -w * a

    return _each(one, rule)


def sapo(one: Tokens, seen: Counter, *, positive=1.0, negative=1.05):
    def rule(logp, old, a):
        tau, r = positive if a > 0 else negative, ratio(logp - old)
        sigma = 1 / (1 + math.exp(-tau * (r - 1)))
        seen["positive" if a > 0 else "negative" if a < 0 else "zero"] += 1
        seen["faded"] += 4 * sigma * (1 - sigma) < 0.5
        return -a * sigma * 4 / tau, -a * 4 * sigma * (1 - sigma) * r

    return _each(one, rule)


def opmd(one: Tokens, seen: Counter, *, tau=1.0):
    seen["any"] += len(one.logp)
    return _each(one, lambda logp, old, a: (-a * logp / (1 + tau), -a / (1 + tau)))


def kimi_opmd(one: Tokens, seen: Counter, *, tau=1.0):
    whole = 0.0
    for logp, ref in zip(one.logp, one.ref):
        whole += logp - ref
    seen["above the reference" if whole > 0 else "below the reference"] += 1
    # the square of a sum: ½ τ whole² is what the values add to, τ whole what each token feels
    values = [-a * logp + 0.5 * tau * whole * (logp - ref) for logp, ref, a in zip(one.logp, one.ref, one.advantage)]
    return values, [-a + tau * whole for a in one.advantage]


def topr(one: Tokens, seen: Counter, *, threshold=0.0):
    if math.isnan(one.reward):
        seen["no score"] += 1
        return [0.0] * len(one.logp), [0.0] * len(one.logp)
    product = 1.0
    for logp, old in zip(one.logp, one.old):
        product *= math.exp(logp - old)
    alpha = 1.0
    if one.reward <= threshold:
        alpha = min(max(product, math.exp(-20)), 1.0)
        if one.reward:
            seen["tapered"] += len(one.logp) * (product < 1)
            seen["clipped_low"] += len(one.logp) * (product > 1)
    else:
        seen["succeeded"] += len(one.logp)
    return [-alpha * one.reward * logp for logp in one.logp], [-alpha * one.reward] * len(one.logp)


def topr_token(one: Tokens, seen: Counter, *, threshold=0.0):
    if math.isnan(one.reward):
        seen["no score"] += 1
        return [0.0] * len(one.logp), [0.0] * len(one.logp)

    def rule(logp, old, a):
        alpha = 1.0
        if one.reward <= threshold:
            alpha = min(ratio(logp - old), 1.0)
            if one.reward:
                seen["tapered" if alpha < 1 else "clipped_low"] += 1
        else:
            seen["succeeded"] += 1
        return -alpha * one.reward * logp, -alpha * one.reward

    return _each(one, rule)


def simplified_ppo(one: Tokens, seen: Counter, *, epsilon=0.3):
    def rule(logp, old, a):
        d = logp - old
        if abs(d) > math.log(1 + epsilon):
            seen["clipped_high" if a > 0 else "clipped_low" if a < 0 else "dropped at 0"] += 1
            seen["above"] += d > 0
            seen["below"] += d < 0
            return 0.0, 0.0
        seen["inside"] += 1
        return -a * d, -a

    return _each(one, rule)


def geo_mean(one: Tokens, seen: Counter, *, low=0.4, high=0.4):
    """The product of the ratios, each bounded where the advantage pushes, to the power 1/n."""
    a, product, free = one.advantage[0], 1.0, []
    for logp, old in zip(one.logp, one.old):
        r = math.exp(logp - old)
        if a > 0 and r > math.exp(high):
            seen["clipped_high"] += 1
            r, moves = math.exp(high), False
        elif a < 0 and r < math.exp(-low):
            seen["clipped_low"] += 1
            r, moves = math.exp(-low), False
        else:
            seen["free"] += 1
            moves = True
        product *= r ** (1 / len(one.logp))
        free.append(moves)
    return [-a * product] * len(free), [-a * product if moves else 0.0 for moves in free]


def dppo(one: Tokens, seen: Counter, *, delta=0.15, cap=20.0):
    values, slopes = [], []
    for logp, sampler, a in zip(one.logp, one.sampler, one.advantage):
        if math.isnan(sampler):
            seen["nobody sampled"] += 1
            sampler = logp
        p, p_old = math.exp(logp), math.exp(sampler)
        seen["capped"] += p / p_old > cap
        r = min(p / p_old, cap)
        if a > 0 and p - p_old > delta:
            seen["clipped_high"] += 1
            r = 0.0
        elif a < 0 and p_old - p > delta:
            seen["clipped_low"] += 1
            r = 0.0
        elif abs(p - p_old) > delta:
            seen["far, kept"] += 1
        values.append(-a * r * logp)
        slopes.append(-a * r)
    return values, slopes


def rec(one: Tokens, seen: Counter, *, range="none", weighting="none", regulariser="none", coef=0.0, temperature=1.0):
    low, high, low_prime, high_prime = 0.2, 0.2, 0.6, 2.0

    def rule(logp, old, a):
        d = logp - old
        r = ratio(d)
        inner = 1 - low <= r <= 1 + high
        if range == "one_side":
            counts = (r <= 1 + high) if a > 0 else (r >= 1 - low) if a < 0 else True
        elif range == "two_side":
            counts = inner
        elif range == "ring":
            again = (a > 0 and r <= 1 - low_prime) or (a < 0 and r >= 1 + high_prime)
            seen["again"] += again
            counts = inner or again or (a == 0 and not 1 - low_prime < r < 1 + high_prime)
        else:
            counts = True
        if not counts:
            seen["clipped_high" if a > 0 else "clipped_low" if a < 0 else "outside at 0"] += 1
        else:
            seen["inside"] += 1
        w = {"none": 1.0, "importance": r, "advantage": math.exp(a / temperature)}[weighting] * counts
        more, slope = {"none": (0.0, 0.0), "k2": (d * d, 2 * d), "forward_kl": (-logp, -1.0)}[regulariser]
        return -a * w * logp + coef * more, -a * w + coef * slope

    return _each(one, rule)
