"""What a run says of itself: while it goes on, and at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.run import showing_parts
from trinity_core.config.check import check
from trinity_core.config.compose import compose
from trinity_core.errors import ConfigError, RunError
from trinity_core.run.audit import open_for_reading
from trinity_core.run.resume import expand
from trinity_core.run.session import start

RUN = ["recipe=fake", "groups_per_step=2", "algorithm.group_size=4", "tracker=[]"]


def run(*words: str) -> dict[str, Any]:
    words = tuple(expand(words))
    return start(check(compose(words)), words)


def test_the_phase_is_what_goes_on_and_counters_count_play_alone(tmp_path: Path):
    showing_parts.SEEN.clear()
    run(*RUN, "+tracker@trackers.watch=tests.run.showing_parts:Watch", "steps=1", f"out={tmp_path / 'run'}")
    said = [(event, state["phase"]) for event, state in showing_parts.SEEN]
    assert [one for one in said if one[0] != "step"] == [
        ("evaluated", "evaluating digits"),
        ("evaluated", "evaluating digits"),
        ("checkpointed", "saving"),  # written beside the evaluation; the end waits for it
    ]
    assert ("step", "training") not in said
    before, after = showing_parts.SEEN[0][1], showing_parts.SEEN[-1][1]
    assert (before["groups"], before["attempts"], before["tokens"]) == (0, 0, 0)
    assert (after["groups"], after["attempts"]) == (2, 8)  # one step of two groups of four


def test_an_explorer_alone_says_how_to_train_what_it_stored_and_that_is_timed(tmp_path: Path):
    out = tmp_path / "run"
    played = run(*RUN, "mode=explore", "steps=2", f"out={out}")
    assert played["groups"] == 4
    assert played["next"][0] == f"trinity run resume={out} mode=train"
    trained = run(f"resume={out}", "mode=train")
    assert trained["steps"] == 2 and trained["train_seconds"] > 0
    assert trained["next"][0] == f"trinity run resume={out} steps=4"


@pytest.mark.parametrize("trained", [0, 1])
def test_what_an_explorer_alone_has_played_outlives_a_training_that_was_cut_short(tmp_path: Path, trained: int):
    """It is there until a checkpoint has seen it trained, whichever mode was resumed last."""
    out, last = tmp_path / "run", trained + 2
    if trained:
        run(*RUN, "buffer=sql", f"steps={trained}", f"out={out}")
        run(f"resume={out}", "mode=explore", f"steps={last}")
    else:
        run(*RUN, "mode=explore", f"steps={last}", f"out={out}")
    for _ in range(2):  # it trains what there is, waits for a step that nobody plays, and has no checkpoint of any
        with pytest.raises(RunError, match=f"step {last + 1}: 0 of 2 groups after"):
            run(f"resume={out}", "mode=train", f"steps={last + 1}", "checkpoint.every=0", "trainer.wait_s=1")
    ended = run(f"resume={out}", "mode=train", f"steps={last}")
    assert ended["steps"] == last
    ledger = open_for_reading(out)
    assert not [event for event in ledger.events() if event.event == "voided"]
    ledger.close()


def test_places_that_a_training_gave_up_come_back_when_it_did_not_survive(tmp_path: Path):
    """Those that the explorer alone gave up stay given up: they are counted when training begins."""
    out = tmp_path / "run"
    run(*RUN, "mode=explore", "steps=2", f"out={out}")
    with pytest.raises(RunError, match="step 3: 0 of 2 groups after"):
        run(f"resume={out}", "mode=train", "steps=3", "checkpoint.every=0", "trainer.wait_s=1")
    ledger = open_for_reading(out)
    ledger.join()
    ledger.give_up(1, 4, "a step that trains short")
    ledger.close()
    ended = run(f"resume={out}", "mode=both", "steps=3", "trainer.wait_s=20")
    assert ended["steps"] == 3


def test_a_bench_shows_accuracy_and_no_training(tmp_path: Path, capsys):
    out = tmp_path / "run"
    result = run(*RUN, "tracker=[console]", "mode=bench", f"out={out}")
    printed = capsys.readouterr().out
    assert "accuracy digits  0." in printed and "mini-batches" not in printed and "accuracy before" not in printed
    assert result["next"] == [f"trinity run resume={out} mode=both"]


def test_a_bench_without_an_eval_taskset_is_refused_by_the_check():
    with pytest.raises(ConfigError, match=r"eval\.tasksets: mode=bench .* no eval taskset"):
        check(compose([*RUN, "~eval.tasksets.digits", "mode=bench"]))
