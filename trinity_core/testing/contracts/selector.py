"""What every selector keeps to: one existing row for each draw, and the same choices after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trinity_core.testing.fakes import fake_group
from trinity_core.testing.rules import NotApplicable, require
from trinity_core.testing.subject import opened

SIZES = {"a": 7, "b": 3}
WEIGHTS = {"a": 1.0, "b": 1.0}


def _pick(live: Any, draws: range, weights: dict[str, float] = WEIGHTS) -> list[tuple[str, int]]:
    return list(live.pick(draws, SIZES, weights))


def one_row_per_draw(component: Any, tmp: Path) -> None:
    with opened("selector", component, tmp) as live:
        picked = _pick(live, range(25))
        require(len(picked) == 25, f"25 draws got {len(picked)} rows")
        for slot, row in picked:
            require(slot in SIZES and 0 <= row < SIZES[slot], f"({slot!r}, {row}) does not exist in {SIZES}")


def same_seed_same_choice(component: Any, tmp: Path) -> None:
    with opened("selector", component, tmp) as first, opened("selector", component, tmp) as second:
        require(_pick(first, range(25)) == _pick(second, range(25)), "two runs of one seed pick different rows")


def batch_size_does_not_matter(component: Any, tmp: Path) -> None:
    """Asking for ten draws is asking twice for five: how often the gate opens is not part of an experiment."""
    with opened("selector", component, tmp) as whole, opened("selector", component, tmp) as halves:
        in_two = _pick(halves, range(5)) + _pick(halves, range(5, 10))
        require(_pick(whole, range(10)) == in_two, "draws 0-9 at once and in two halves pick different rows")


def weight_zero_is_never_picked(component: Any, tmp: Path) -> None:
    with opened("selector", component, tmp) as live:
        slots = {slot for slot, _ in _pick(live, range(40), {"a": 0.0, "b": 1.0})}
        require(slots == {"b"}, f"a taskset of weight 0 was picked: {slots}")


def resume_goes_on_with_the_same_choices(component: Any, tmp: Path) -> None:
    """State saved after some draws and loaded into a fresh life: the next draws are those of the run that never stopped."""
    with opened("selector", component, tmp) as whole, opened("selector", component, tmp) as resumed:
        _pick(whole, range(6))
        whole.observe(fake_group([1.0, 0.0], slot="a"))
        if hasattr(whole, "state_dict"):
            resumed.load_state_dict(whole.state_dict())
        require(_pick(whole, range(6, 20)) == _pick(resumed, range(6, 20)), "after a resume it picks other rows")


def observes_any_group(component: Any, tmp: Path) -> None:
    """Groups without a single score, and of one attempt, come by too."""
    if (
        type(component).open.__qualname__ == "Component.open"
        and type(component).observe.__qualname__ == "Selector.observe"
    ):
        raise NotApplicable("it does not learn from groups")
    with opened("selector", component, tmp) as live:
        for rewards in ([1.0], [None, None], [0.0, 0.0, 0.0]):
            live.observe(fake_group(rewards, slot="b"))
        _pick(live, range(4))


RULES = {
    "one existing row for each draw": one_row_per_draw,
    "same seed, same choice": same_seed_same_choice,
    "how many are asked at once does not matter": batch_size_does_not_matter,
    "weight 0 is never picked": weight_zero_is_never_picked,
    "a resume goes on with the same choices": resume_goes_on_with_the_same_choices,
    "observes any group": observes_any_group,
}
