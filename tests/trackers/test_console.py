"""What a person sees of a run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from trinity_core.builtins.trackers import console as module
from trinity_core.builtins.trackers.console import Console, LiveConsole
from trinity_core.builtins.trackers.words import clock, number, progress_line, step_line, summary_rows
from trinity_core.errors import ConfigError

PLAN = {
    "model": [("path", "[odd] name"), ("parameters", 134_515_008)],
    "a step": [("samples", "8 tasks × 8 attempts = 64"), ("lr", 1e-5)],
    "budget": 7,
}
METRICS = {
    "reward/mean": 0.5,
    "reward/std": 0.25,
    "response/length": 12.4,
    "kl/ref": 0.0123,
    "grad_norm": 1.5,
    "lr": 1e-5,
    "staleness/max": 0.0,
    "time/step_s": 4.0,
    "tokens/trained": 8000.0,
}
RESULT = {"accuracy": 0.913, "ci_low": 0.866, "ci_high": 0.946, "n": 200}
STATE = {
    "phase": "playing",
    "step": 2,
    "steps": 40,
    "groups": 3,
    "attempts": 24,
    "tokens": 12_345,
    "tokens_per_s": 321.4,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def whole_run(live: LiveConsole, *, status: str = "finished") -> None:
    live.started({"id": "abc", "plan": PLAN, "resumed": False, "step": 2})
    live.progress(STATE)
    live.step(1, METRICS)
    live.evaluated(1, "heldout", RESULT)
    live.checkpointed(1, "out/checkpoints/step-1")
    live.warned("something [bold]odd[/]")
    summary: dict[str, Any] = {
        "status": status,
        "steps": 1,
        "train_seconds": 187.0,
        "seed": 1234,
        "eval_before": None,
        "eval_after": RESULT,
    }
    live.finished(summary | {"next": ["trinity run resume=out steps=2", "trinity audit out"]})
    live.close()


def printed(stream: io.StringIO | None = None, **kwargs: Any) -> str:
    stream = stream or io.StringIO()
    whole_run(LiveConsole(Console(**kwargs), stream))
    return stream.getvalue()


def test_a_pipe_shows_the_whole_run_line_by_line():
    assert printed().splitlines() == [
        "run abc starts",
        "model   path        [odd] name",
        "        parameters  134,515,008",
        "a step  samples     8 tasks × 8 attempts = 64",
        "        lr          1e-05",
        "budget              7",
        "0s  playing  step 3/40  3 groups  24 samples  12,345 tokens  321 tok/s",
        "step    1  reward 0.500  ± 0.250  length 12  kl 0.0123  grad 1.5  lr 1e-05  4.0 s  2,000 tok/s trained",
        "eval step    1  heldout: 0.913  95 % 0.866 … 0.946  n = 200",
        "checkpoint of step 1 written: out/checkpoints/step-1",
        "warning: something [bold]odd[/]",
        "run finished",
        "summary  steps           1",
        "         time training   3m07s",
        "         accuracy after  0.913  95 % 0.866 … 0.946  n = 200",
        "         seed            1234",
        "next",
        "  trinity run resume=out steps=2",
        "  trinity audit out",
    ]


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"])
def test_a_pipe_gets_no_control_codes_whatever_the_environment_says(monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    assert "\x1b" not in printed() and "\r" not in printed()


def test_a_long_line_stays_one_line_in_a_pipe():
    stream = io.StringIO()
    LiveConsole(Console(), stream).warned("x" * 500)
    assert stream.getvalue() == "warning: " + "x" * 500 + "\n"


def test_a_terminal_gets_colours_and_a_live_line_that_goes_away():
    text = printed(Terminal())
    assert "\x1b[" in text and "playing" in text
    assert text.rstrip().splitlines()[-1].startswith("\x1b[32m  trinity audit out")


def test_nothing_is_left_running_after_a_terminal_run_that_was_only_closed():
    live = LiveConsole(Console(), Terminal())
    live.started({"plan": {}})
    live.progress(STATE)
    assert live._live is not None
    live.close()
    live.close()
    assert live._live is None


def test_progress_is_shown_at_once_and_then_every_few_seconds(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    live = LiveConsole(Console(every_s=5.0), stream)
    live.started({"id": "a", "plan": {}})
    seen = []
    for _ in range(24):  # 12 seconds in halves: shown at 0, 5 and 10
        before = len(stream.getvalue())
        live.progress(STATE | {"step": 0})
        if len(stream.getvalue()) > before:
            seen.append(now[0] - 100.0)
        now[0] += 0.5
    assert seen == [0.0, 5.0, 10.0]


def test_the_time_left_is_the_mean_of_this_lifes_steps(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    live = LiveConsole(Console(), stream)
    live.started({"id": "a", "plan": {}, "step": 10, "resumed": True})
    now[0] = 60.0
    live.progress(STATE | {"step": 12, "steps": 20})
    # two steps in 60 s are 30 s each; eight are left: 240 s
    assert "run a resumes" in stream.getvalue() and "4m00s left" in stream.getvalue()


def test_the_time_left_leaves_evaluations_out_and_counts_down_within_a_step():
    stream = io.StringIO()
    live = LiveConsole(Console(), stream)
    live.started({"id": "a", "plan": {}})
    said = [
        live._left({"step": step, "steps": 4, "train_seconds": work}, now=1e6)
        for step, work in ((0, 0.0), (1, 10.0), (1, 10.0), (1, 14.0), (2, 30.0))
    ]
    # ten seconds a step, three are left: 30 s, less what is done of the next; then (30 / 2) · 2
    assert said == [None, 30.0, 30.0, 26.0, 30.0]


def test_a_live_line_stays_one_line_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    live = LiveConsole(Console(), stream)
    live.started({"id": "a", "plan": {}})
    live.progress(STATE)
    drawn = live._rich.render_lines(live._live.renderable)
    live.close()
    assert len(drawn) == 1 and "…" in "".join(segment.text for segment in drawn[0])


def test_each_mode_sums_up_what_it_did():
    bench = {"mode": "bench", "steps": 0, "train_seconds": 0.0, "bench": [RESULT | {"taskset": "heldout"}], "seed": 1}
    assert [label for label, _ in summary_rows(bench)] == ["steps", "accuracy heldout", "seed"]
    assert summary_rows({"mode": "explore", "steps": 0, "groups": 8}) == [("groups stored", 8)]


def test_a_number_that_rounds_to_nothing_has_no_sign():
    assert step_line(1, {"reward/mean": -0.00001, "kl/ref": -1e-9}) == "step    1  reward 0.000  kl 0.0000"
    assert step_line(1, {"reward/mean": -0.25}) == "step    1  reward -0.250"


def test_what_a_step_waited_is_shown_apart():
    assert step_line(1, {"time/step_s": 4.0, "time/wait_s": 3.1}) == "step    1  0.9 s + 3.1 s waiting"


def test_the_plan_can_be_left_out():
    assert "parameters" not in printed(plan=False)


def test_a_failed_run_says_so_and_leaves_the_error_to_who_raises_it():
    stream = io.StringIO()
    LiveConsole(Console(), stream).finished(
        {"status": "failed", "steps": 0, "error": "RunError: no groups", "next": []}
    )
    text = stream.getvalue()
    assert text.startswith("run failed\n") and "no groups" not in text and "next" not in text


def test_it_writes_to_standard_output_only(capsys, tmp_path: Path):
    from trinity_core.testing.fakes import FakeRun

    live = Console().open(FakeRun(dir=tmp_path))
    whole_run(live)
    out, err = capsys.readouterr()
    assert out.startswith("run abc starts") and err == ""


def test_an_interval_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="every_s"):
        Console(every_s=0)


def test_the_loss_is_shown_where_nothing_was_scored():
    assert step_line(1, {"loss": 0.693147, "grad_norm": 1.5}) == "step    1  loss 0.6931  grad 1.5"
    assert step_line(1, {"loss": 0.693147, "reward/mean": 0.5}) == "step    1  reward 0.500"


def test_words():
    assert [clock(s) for s in (0, 59.4, 59.6, 3599, 3600, 7500)] == ["0s", "59s", "1m00s", "59m59s", "1h00m", "2h05m"]
    assert [number(v) for v in (True, 1000, 1e-5, 0.25, "x", None)] == ["yes", "1,000", "1e-05", "0.25", "x", "None"]
    assert step_line(3, {"kl/old": 0.5, "staleness/max": 2.0}) == "step    3  kl(old) 0.5000  stale 2"
    assert step_line(1, {"reward/mean": float("nan"), "time/step_s": 0.0}) == "step    1  reward nan  0.0 s"
    assert progress_line({}, seconds=1, reward=0.5, left=None) == "1s  0 tok/s  reward 0.500"
