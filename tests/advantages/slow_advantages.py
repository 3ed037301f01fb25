"""Every advantage once more, slowly: plain Python, one attempt and one token at a time, written from the formulas.

A lease becomes a list of :class:`Play`; each function returns what every action token of the lease gets, in their order:
credit, whether it counts, and (for a critic) its return.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Play:
    """One attempt."""

    number: int
    group: int
    role: str
    reward: float | None
    num_actions: int
    truncated: bool
    tokens: list[int] = field(default_factory=list)
    """Places of its action tokens, in its own order."""
    calls: list[int] = field(default_factory=list)
    """Its calls, by step number."""

    @property
    def counts(self) -> bool:
        return self.role == "sample" and self.reward is not None and self.num_actions > 0


def plays(batch) -> list[Play]:
    found = []
    for number in range(len(batch.reward_A)):
        reward = float(batch.reward_A[number])
        one = Play(
            number,
            int(batch.group_A[number]),
            str(batch.role_A[number]),
            None if math.isnan(reward) else reward,
            int(batch.num_actions_A[number]),
            bool(batch.truncated_A[number]),
        )
        for place in range(len(batch.attempt_N)):
            if batch.attempt_N[place] == number:
                one.tokens.append(place)
        for call in range(len(batch.attempt_K)):
            if batch.attempt_K[call] == number:
                one.calls.append(call)
        one.calls.sort(key=lambda call: int(batch.step_K[call]))
        found.append(one)
    return found


def mean(values):
    return math.fsum(values) / len(values)


def deviation(values, less=1):
    """With ``less=1`` of a sample, with ``less=0`` of a population; of equal values, or of one, 0."""
    if len(values) < 2 or same(values):
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - less))


def same(values):
    return max(values) - min(values) <= 1e-9 * max(abs(value) for value in values)


def siblings(one, everyone):
    return [other.reward for other in everyone if other.counts and other.group == one.group]


def centred(one, everyone):
    rewards = siblings(one, everyone)
    return 0.0 if same(rewards) else one.reward - mean(rewards)


def per_attempt(batch, credit, keep=None):
    """Credit of each attempt that counts, for all of its tokens; others get 0."""
    everyone = plays(batch)
    result = [0.0] * len(batch.attempt_N)
    kept = [True] * len(batch.attempt_N)
    for one in everyone:
        for place in one.tokens:
            result[place] = credit(one, everyone) if one.counts else 0.0
            kept[place] = keep(one, everyone) if keep else True
    return result, kept, None


def per_call(batch, credit):
    everyone = plays(batch)
    result = [0.0] * len(batch.attempt_N)
    for one in everyone:
        for place in one.tokens:
            if one.counts:
                result[place] = credit(one, int(batch.call_N[place]), everyone)
    return result, [True] * len(result), None


def whitened(values, eps):
    """Of each value that is not None; the others get 0."""
    there = [value for value in values if value is not None]
    if not there or same(there):
        return [0.0] * len(values)
    middle, spread = mean(there), deviation(there, less=0)
    return [0.0 if value is None else (value - middle) / (spread + eps) for value in values]


def token_rewards(batch, one, terminal):
    """The attempt's own rewards, one for each of its action tokens: ``terminal`` on the last."""
    rewards = []
    for position, place in enumerate(one.tokens):
        reward = 0.0
        for name in ("token_reward", "penalty"):
            if name in batch.tokens:
                reward += float(batch.tokens[name][place])
        rewards.append(reward + (terminal if position == len(one.tokens) - 1 else 0.0))
    return rewards


def terminal_of(batch, one):
    """The attempt's reward without the penalty that ``reward_A`` already holds."""
    if "penalty" not in batch.tokens:
        return one.reward
    return one.reward - math.fsum(float(batch.tokens["penalty"][place]) for place in one.tokens)


# --- one function per advantage ---------------------------------------------------------------------------------------


def grpo(batch, *, normalize=True, eps=1e-6, std_level="group"):
    def credit(one, everyone):
        if not normalize:
            return centred(one, everyone)
        everywhere = [other.reward for other in everyone if other.counts]
        spread = deviation(siblings(one, everyone) if std_level == "group" else everywhere)
        return centred(one, everyone) / (spread + eps)

    return per_attempt(batch, credit)


def rloo(batch):
    def credit(one, everyone):
        others = [other.reward for other in everyone if other.counts and other.group == one.group and other is not one]
        if not others or same([*others, one.reward]):
            return 0.0
        return one.reward - mean(others)

    return per_attempt(batch, credit)


def reinforce(batch):
    return per_attempt(batch, lambda one, everyone: one.reward)


def reinforce_pp(batch, *, gamma=1.0, baseline=None, eps=1e-8):
    everyone = plays(batch)
    returns = [None] * len(batch.attempt_N)
    for one in everyone:
        if not one.counts:
            continue
        terminal = terminal_of(batch, one)
        if baseline == "group":
            group = [terminal_of(batch, other) for other in everyone if other.counts and other.group == one.group]
            terminal = 0.0 if same(group) else terminal - mean(group)
        rewards = token_rewards(batch, one, terminal)
        for position, place in enumerate(one.tokens):
            later = range(position, len(rewards))
            returns[place] = math.fsum(gamma ** (k - position) * rewards[k] for k in later)
    return whitened(returns, eps), [True] * len(returns), None


def opmd(batch, *, baseline="mean", tau=1.0):
    def credit(one, everyone):
        rewards = siblings(one, everyone)
        if baseline == "mean" or same(rewards):
            return centred(one, everyone)
        return one.reward - tau * math.log(math.fsum(math.exp(reward / tau) for reward in rewards) / len(rewards))

    return per_attempt(batch, credit)


def remax(batch):
    def credit(one, everyone):
        greedy = [
            other.reward
            for other in everyone
            if other.role == "greedy" and other.group == one.group and other.reward is not None
        ]
        return one.reward - mean(greedy) if greedy else 0.0

    return per_attempt(batch, credit)


def gae(batch, *, gamma=1.0, lam=1.0, whiten=True, eps=1e-8, bootstrap_truncated=False):
    """``A_t = Σ_l (γλ)^l δ_{t+l}``, summed anew for every token."""
    values = [float(value) for value in batch.tokens["value"]]
    advantages, returns = [None] * len(values), list(values)
    for one in plays(batch):
        if not one.counts:
            continue
        own = [values[place] for place in one.tokens]
        own.append(own[-1] if bootstrap_truncated and one.truncated else 0.0)
        rewards = token_rewards(batch, one, terminal_of(batch, one))
        deltas = [reward + gamma * own[t + 1] - own[t] for t, reward in enumerate(rewards)]
        for t, place in enumerate(one.tokens):
            advantages[place] = math.fsum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:]))
            returns[place] = advantages[place] + own[t]
    if whiten:
        advantages = whitened(advantages, eps)
    return [advantage or 0.0 for advantage in advantages], [True] * len(values), returns


def asymre(batch, *, shift=-0.1):
    def credit(one, everyone):
        rewards = siblings(one, everyone)
        return one.reward - (mean(rewards) + shift) if len(rewards) > 1 else 0.0

    return per_attempt(batch, credit)


def rec(batch, *, normalize=False, eps=1e-6, drop=None):
    def kept(one, everyone):
        """The attempts of its group that stay, in order."""
        group = [other for other in everyone if other.counts and other.group == one.group]
        below = [other for other in group if centred(other, everyone) < 0] if drop == "balance" else []
        leave = below[len(group) - len(below) :]
        return [other for other in group if other not in leave]

    def credit(one, everyone):
        stay = kept(one, everyone)
        if one not in stay:
            return 0.0
        rewards = [other.reward for other in stay]
        value = 0.0 if same(rewards) else one.reward - mean(rewards)
        return value / (deviation(rewards, less=0) + eps) if normalize else value

    return per_attempt(batch, credit, lambda one, everyone: not one.counts or one in kept(one, everyone))


def maxrl(batch):
    def credit(one, everyone):
        middle = mean(siblings(one, everyone))
        return centred(one, everyone) / middle if middle > 0 else 0.0

    return per_attempt(batch, credit)


def step_wise_grpo(batch, *, final="attempt", step_norm=False, normalize=True, eps=1e-6, std_level="group"):
    def reward(one):
        if final == "last_step" and one.calls:
            last = float(batch.reward_K[one.calls[-1]])
            return one.reward if math.isnan(last) else last
        return one.reward

    def credit(one, call, everyone):
        group = [reward(other) for other in everyone if other.counts and other.group == one.group]
        lease = [reward(other) for other in everyone if other.counts]
        value = 0.0 if same(group) else reward(one) - mean(group)
        if normalize:
            value /= deviation(group if std_level == "group" else lease) + eps
        return value / len(one.calls) if step_norm else value

    return per_call(batch, credit)


def gigpo(batch, *, omega=1.0, gamma=0.95, normalize=False, eps=1e-6):
    def discounted(one, call):
        rewards = [float(batch.reward_K[each]) for each in one.calls]
        if all(math.isnan(reward) for reward in rewards):
            rewards[-1] = one.reward
        rewards = [0.0 if math.isnan(reward) else reward for reward in rewards]
        first = one.calls.index(call)
        return math.fsum(gamma ** (k - first) * reward for k, reward in enumerate(rewards) if k >= first)

    def relative(value, values):
        if len(values) < 2 or same(values):
            return 0.0
        return (value - mean(values)) / (deviation(values) + eps if normalize else 1.0)

    def credit(one, call, everyone):
        state, here = str(batch.state_K[call]), []
        for other in everyone:
            if other.counts and other.group == one.group:
                here += [discounted(other, each) for each in other.calls if str(batch.state_K[each]) == state != ""]
        step = relative(discounted(one, call), here) if here else 0.0
        return relative(one.reward, siblings(one, everyone)) + omega * step

    return per_call(batch, credit)


def on_policy_distill(batch, *, coef=1.0):
    result = [0.0] * len(batch.attempt_N)
    for one in plays(batch):
        for place in one.tokens if one.counts else []:
            result[place] = coef * float(batch.tokens["teacher_logp"][place] - batch.tokens["old_logp"][place])
    return result, [True] * len(result), None


def jsd_sampled(batch, *, beta=0.5):
    result = [0.0] * len(batch.attempt_N)
    for one in plays(batch):
        for place in one.tokens if one.counts else []:
            student = math.exp(batch.tokens["old_logp"][place])
            mixture = beta * math.exp(batch.tokens["teacher_logp"][place]) + (1 - beta) * student
            result[place] = -(1 - beta) * math.log(student / mixture)
    return result, [True] * len(result), None


def own_tokens(batch):
    return [place for one in plays(batch) if one.counts for place in one.tokens]


def clip_b(batch, *, mu=2.5, eps=1e-6):
    credit, kept, _ = grpo(batch, eps=eps)
    logp, entropy = batch.tokens["old_logp"], batch.tokens["entropy"]
    signal = [math.exp(logp[place]) * float(entropy[place] + logp[place]) for place in range(len(logp))]
    own = own_tokens(batch)
    values = [signal[place] for place in own]
    if own and not same(values):
        for place in own:
            kept[place] = not (credit[place] < 0 and signal[place] - mean(values) < -mu * deviation(values, less=0))
    return [value if keep else 0.0 for value, keep in zip(credit, kept)], kept, None


def clip_v(batch, *, mu=2.0, max_share=1e-4, eps=1e-6):
    credit, kept, _ = grpo(batch, eps=eps)
    far = [float(value) for value in batch.tokens["entropy_deviation"]]
    own = own_tokens(batch)
    values = [far[place] for place in own]
    if own and not same(values):
        spread = deviation(values, less=0)
        leave = [place for place in own if credit[place] < 0 and far[place] > mu * spread]
        leave.sort(key=lambda place: -far[place])
        most = max(math.floor(max_share * len(own)), 1)
        for place in leave[:most]:
            # a tie at the edge: neither leaves
            kept[place] = len(leave) > most and far[place] == far[leave[most]]
    return [value if keep else 0.0 for value, keep in zip(credit, kept)], kept, None


def win_rate(batch):
    def credit(one, everyone):
        points = []
        largest = max(abs(reward) for reward in siblings(one, everyone))
        for other in everyone:
            if other.counts and other.group == one.group and other is not one:
                draw = abs(one.reward - other.reward) <= 1e-9 * largest
                points.append(0.5 if draw else float(one.reward > other.reward))
        return mean(points) - 0.5 if points else 0.0

    return per_attempt(batch, credit)


def raft(batch, *, threshold=0.0):
    def success(one, everyone):
        return one.counts and one.reward > threshold

    def imitated(one, everyone):
        return one.role == "expert" or success(one, everyone)

    return per_attempt(batch, lambda one, everyone: float(success(one, everyone)), imitated)
