"""The kit finds tasksets that announce one thing and give another, and operators whose pairs are none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from trinity_core.protocols import Operator, Taskset
from trinity_core.testing.contracts import operator, taskset
from trinity_core.testing.fakes import Digits, FakeTask
from trinity_core.testing.rules import NotApplicable


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


@dataclass(frozen=True)
class Gives(Taskset):
    """Announces and gives what the test says."""

    announced: frozenset[str]
    given: Any

    def __len__(self):
        return 1

    def __getitem__(self, row):
        if row:
            raise IndexError(row)
        return replace(FakeTask("4", "say 4"), given=self.given)

    def gives(self):
        return self.announced


PAIR = frozenset({"chosen", "rejected"})


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (Gives(frozenset(), {"expert": said("4")}), "given has expert, and gives() says nothing"),
        (Gives(frozenset({"expert"}), {}), "given has nothing, and gives() says expert"),
        (Gives(frozenset({"teacher"}), {}), "gives() says teacher"),
        (Gives(frozenset({"chosen"}), {"chosen": said("4")}), "a pair has both sides"),
    ],
)
def test_roles_that_are_announced_wrongly_are_found(component, message, tmp_path):
    with pytest.raises(AssertionError) as caught:
        taskset.given_roles_are_announced(component, tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (Gives(PAIR, {"chosen": said("4"), "rejected": said("4")}), "are the same"),
        (Gives(frozenset({"expert"}), {"expert": [{"role": "user", "content": "4"}]}), "ends with a message"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_learned_is_found(component, message, tmp_path):
    with pytest.raises(Exception) as caught:
        taskset.given_data_can_be_learned(component, tmp_path)
    assert message in str(caught.value)


def test_tasks_that_are_played_need_no_such_rule(tmp_path):
    taskset.given_roles_are_announced(Digits(), tmp_path)
    with pytest.raises(NotApplicable):
        taskset.given_data_can_be_learned(Digits(), tmp_path)
    taskset.given_data_can_be_learned(Digits(demonstrations=True, preferences=True), tmp_path)


@dataclass(frozen=True)
class Sets(Operator):
    """Pairs as the test says."""

    pairs: tuple[tuple[int, int], ...]

    def __call__(self, group):
        return [replace(group, pairs=list(self.pairs))]


@dataclass(frozen=True)
class Claims(Sets):
    makes_pairs: ClassVar = True


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (Sets(((0, 0),)), "is not two of its"),
        (Claims(((0, 9),)), "is not two of its"),
        (Claims(()), "no example became a pair"),
    ],
)
def test_pairs_that_are_none_are_found(component, message, tmp_path):
    with pytest.raises(AssertionError) as caught:
        operator.pairs_are_whole(component, tmp_path)
    assert message in str(caught.value)


@dataclass(frozen=True)
class Silent(Operator):
    """Makes pairs where there are two attempts, and says nothing of it."""

    def __call__(self, group):
        return [replace(group, pairs=[(0, 1)])] if len(group.attempts) > 1 else [group]


def test_an_operator_that_makes_pairs_must_say_so(tmp_path):
    with pytest.raises(AssertionError, match="say makes_pairs"):
        operator.pairs_are_whole(Silent(), tmp_path)
