"""Several processes: one trainer, three explorers, any of them killed."""

from __future__ import annotations

import contextlib
import json
import signal
import time

import pytest

from tests.e2e.helpers import DIGITS, FAKE, start, summary, trinity

WORDS = ("run", *FAKE, *DIGITS, "sync.mode=async", "sync.max_staleness=2", "correction=[truncated_is]", "explorer.order=arrival",
         "explorer.place_ttl_s=3", "trainer.lease_ttl_s=5", "operator=[dynamic_sampling]", "explorer.max_draws=200")  # fmt: skip


def wait_for(condition, what: str, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_three_explorers_and_a_trainer_survive_the_death_of_any(tmp_path):
    """Staleness stays within its bound, filtering never deadlocks, every group is accounted for."""
    run = tmp_path / "out"
    trainer = start(*WORDS, "mode=train", "steps=12", "checkpoint.every=3", "out=out", cwd=tmp_path)
    processes = [trainer]
    try:
        wait_for(lambda: (run / "weights").is_dir() and any((run / "weights").iterdir()), "the first published version")
        explorers = [start("run", "mode=explore", "join=out", cwd=tmp_path) for _ in range(3)]
        processes += explorers
        wait_for(lambda: len(steps(run)) >= 3, "step 3")
        explorers[0].send_signal(signal.SIGKILL)
        processes.append(start("run", "mode=explore", "join=out", cwd=tmp_path))
        wait_for(lambda: len(steps(run)) >= 6, "step 6")
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        trainer = start("run", "resume=out", cwd=tmp_path)
        processes.append(trainer)
        assert trainer.wait(150) == 0, "\n".join(path.read_text()[-3000:] for path in tmp_path.glob("log-*"))
        for explorer in processes[1:]:
            with contextlib.suppress(Exception):
                explorer.wait(30)
    finally:
        for process in processes:
            process.kill()
    assert summary(run)["steps"] == 12
    logged = steps(run)
    assert [line["step"] for line in logged] == list(range(1, 13))
    assert max(line["staleness/max"] for line in logged) <= 2
    trinity("audit", str(run), cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_an_ordered_run_of_two_explorers_goes_on_with_a_trainer_that_lost_steps(tmp_path):
    """Explorers that wait for a version which the killed trainer would have made next play for the resumed one."""
    run = tmp_path / "out"
    trainer = start("run", *FAKE, *DIGITS, "mode=train", "steps=6", "checkpoint.every=2", "explorer.place_ttl_s=20", "out=out",
                    cwd=tmp_path)  # fmt: skip
    processes = [trainer]
    try:
        wait_for(lambda: (run / "weights").is_dir() and any((run / "weights").iterdir()), "the first published version")
        processes += [start("run", "mode=explore", "join=out", cwd=tmp_path) for _ in range(2)]
        wait_for(lambda: len(steps(run)) >= 3, "step 3")
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        (run / "weights" / ".1-9.tmp").mkdir()  # what a kill in the middle of publishing leaves
        processes.append(start("run", "resume=out", cwd=tmp_path))
        for process in processes[1:]:
            assert process.wait(120) == 0, "\n".join(path.read_text()[-3000:] for path in tmp_path.glob("log-*"))
    finally:
        for process in processes:
            process.kill()
    assert [line["step"] for line in steps(run)] == [1, 2, 3, 4, 5, 6]
    assert not list((run / "weights").glob(".*"))
    trinity("audit", str(run), cwd=tmp_path)


def steps(run) -> list[dict]:
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["event"] == "step"]
