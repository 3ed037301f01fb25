"""Rewards: an answer is scored, or it is said why not. Never a zero by accident."""

from __future__ import annotations

import asyncio

import verifiers as V

from trinity_core.builtins.rewards.exact import Exact
from trinity_core.rollout.score import Scorer
from trinity_core.testing.fakes import FakeAttempt, FakeRun, FakeTask, fake_group
from trinity_core.testing.scripted import parts
from trinity_core.types import Fault, Invalid, Ok


def scored(texts, answer="4", numbers=None, **rewards):
    group = fake_group([None] * len(texts), texts=texts, task=FakeTask(answer))

    async def play():
        scorer = Scorer(parts(**rewards), FakeRun(), retries=0)
        try:
            # off the main thread of this process, as explorers run
            await asyncio.to_thread(asyncio.run, scorer.score(group))
            if numbers is not None:
                numbers.update(scorer.pool.numbers)
        finally:
            scorer.close()

    asyncio.run(play())
    return [attempt.score for attempt in group.attempts]


def test_a_verifier_that_needs_a_main_thread_gets_one():
    """REW-01: SIGALRM works where rewards compute; a verifier that raises would be a fault, not a column of zeros."""
    assert [s.value for s in scored(["4", "5"], verifier=V.LimitsItself())] == [1.0, 0.0]


def test_the_limit_holds_off_the_main_thread_and_the_final_message_is_scored():
    """REW-02: the kernel's limit needs no signals; rewards read the last reply of a conversation."""
    assert isinstance(scored(["9**9**9"], verifier=V.Hangs())[0], Fault)
    attempt = FakeAttempt("4", answer="4")
    attempt.messages = [
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": "4"},
    ]
    assert Exact()(attempt) == 1.0


def test_an_item_that_cannot_be_scored_shifts_no_other():
    """REW-03: as many scores as attempts, in their order, whatever happens to one of them."""
    scores = scored(["4", "four", "5", "4"], verifier=V.Reads())
    assert [s.value if isinstance(s, Ok) else None for s in scores] == [1.0, None, 0.0, 1.0]


def test_strict_and_flexible_views_are_both_kept():
    """REW-05: parts of a score are logged by name."""
    (score,) = scored(["so it is 4"], verifier=V.TwoViews())
    assert score == Ok(0.0, {"verifier": 0.0, "verifier.strict": 0.0, "verifier.flexible": 1.0})


def test_the_end_token_and_a_final_newline_are_no_part_of_an_answer():
    """REW-09: special tokens are stripped, the newline is optional."""
    attempt = FakeAttempt("4", answer="4")
    last = attempt.experiences[0]
    assert last.tokens_T[-1] == 0  # the end was sampled and is trained, and the text does not show it
    assert attempt.text == "4" and Exact()(attempt) == 1.0
    assert Exact()(FakeAttempt("4\n", answer="4")) == 1.0


def test_a_hang_costs_one_item_its_score_and_is_counted():
    """REW-10: a limit for each item, the process replaced, the loop alive."""
    numbers: dict[str, int] = {}
    scores = scored(["1", "9**9**9", "2", "9**9**9", "3"], verifier=V.Hangs(), numbers=numbers)
    assert [isinstance(s, Ok) for s in scores] == [True, False, True, False, True]
    assert numbers["late"] == 2


def test_a_reward_that_is_not_finite_is_refused():
    """REW-11: a policy that writes nan or inf where a number is believed gains nothing and breaks nothing."""
    scores = scored(["nan", "inf", "-inf", "1"], verifier=V.Believes())
    assert [isinstance(s, Fault) for s in scores] == [True, True, True, False]


def test_a_broken_scorer_has_no_default_value():
    """REW-12: an exception, an unreadable gold answer, a missing one: each is its own outcome, none is 0."""
    assert isinstance(scored(["four"], verifier=V.Reads())[0], Fault)
    assert scored(["4"], answer="vier", verifier=V.Reads()) == [Invalid("rewards.verifier: gold 'vier' is no number")]
    assert isinstance(scored(["4"], answer=None, exact=Exact())[0], Invalid)
