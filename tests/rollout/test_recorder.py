"""From calls to experiences."""

from __future__ import annotations

import numpy as np
import pytest

from trinity_core.errors import DataError
from trinity_core.rollout.recorder import Recorder
from trinity_core.types import Completion, Origin, Sampling

C, S, H = int(Origin.CONTEXT), int(Origin.SAMPLED), int(Origin.HISTORY)


def said(*tokens: int, versions: list[tuple[int, int]] | None = None, finish: str = "stop") -> Completion:
    logp = -np.arange(1, len(tokens) + 1, dtype=np.float32)
    return Completion(np.array(tokens, np.int32), logp, finish, versions or [(0, 0)])  # type: ignore[arg-type]


def test_a_prompt_that_starts_with_the_experience_grows_it():
    recorder = Recorder()
    recorder.record([1, 2], said(10, 11), Sampling())
    recorder.record([1, 2, 10, 11, 3], said(12), Sampling())
    (one,) = recorder.experiences()
    assert one.tokens_T.tolist() == [1, 2, 10, 11, 3, 12]
    assert one.origin_T.tolist() == [C, C, S, S, C, S]
    np.testing.assert_array_equal(one.logp_T, np.array([np.nan, np.nan, -1, -2, np.nan, -1], np.float32))
    assert [(c.start, c.stop, c.step) for c in one.calls] == [(2, 4, 0), (5, 6, 1)]
    assert recorder.num_branches == 0


def test_any_other_prompt_branches_and_is_counted():
    recorder = Recorder()
    recorder.record([1, 2], said(10, 11), Sampling())
    recorder.record([1, 9], said(12), Sampling())
    first, second = recorder.experiences()
    assert (second.parent, second.index, first.parent) == (0, 1, None)
    assert second.tokens_T.tolist() == [1, 9, 12]
    assert recorder.num_branches == 1


def test_a_second_reply_to_one_prompt_is_a_branch_of_its_own():
    recorder = Recorder()
    recorder.record([1, 2], said(10), Sampling())
    recorder.record([1, 2], said(11), Sampling())
    assert [e.tokens_T.tolist() for e in recorder.experiences()] == [[1, 2, 10], [1, 2, 11]]


def test_the_policys_earlier_words_are_history_in_a_branch_and_never_actions():
    recorder = Recorder()
    recorder.record([1, 2], said(10, 11, 12), Sampling())
    # the template dropped token 11: [1, 2, 10] is shared, [12] was rendered again
    recorder.record([1, 2, 10, 12, 3], said(13), Sampling())
    # the words 10 11 12 come again, behind another opening
    recorder.record([7, 10, 11, 12, 3], said(14), Sampling())
    _, second, third = recorder.experiences()
    assert second.origin_T.tolist() == [C, C, H, C, C, S]
    assert second.action_T.tolist() == [5]
    assert third.origin_T.tolist() == [C, H, H, H, C, S]
    assert np.isnan(third.logp_T[:5]).all()


def test_the_longest_experience_is_the_one_that_grows():
    recorder = Recorder()
    recorder.record([1], said(10), Sampling())
    recorder.record([1, 10, 2], said(11), Sampling())
    recorder.record([1], said(12), Sampling())
    recorder.record([1, 10, 2, 11, 3], said(13), Sampling())
    assert [e.tokens_T.tolist() for e in recorder.experiences()] == [[1, 10, 2, 11, 3, 13], [1, 12]]


def test_versions_are_counted_from_the_start_of_the_experience():
    recorder = Recorder()
    recorder.record([1, 2, 3], said(10, 11, 12, versions=[(4, 0), (5, 2)]), Sampling())
    (one,) = recorder.experiences()
    assert one.calls[0].versions == [(4, 3), (5, 5)]
    assert one.version == 4


def test_an_engine_that_does_not_say_its_version_is_refused():
    with pytest.raises(DataError, match="which version"):
        Recorder().record([1], Completion(np.array([2], np.int32), np.zeros(1, np.float32), "stop", []), Sampling())


def test_a_log_probability_for_each_token_or_a_refusal():
    with pytest.raises(DataError, match="1 log-probabilities for 2 tokens"):
        Recorder().record(
            [1], Completion(np.array([2, 3], np.int32), np.zeros(1, np.float32), "stop", [(0, 0)]), Sampling()
        )


def test_nothing_predicts_the_first_token_so_an_empty_prompt_is_refused():
    with pytest.raises(DataError, match="at least one prompt token"):
        Recorder().record([], said(1), Sampling())
