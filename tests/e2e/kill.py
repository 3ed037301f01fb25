"""Kill a run at random moments, resume it, and compare it with one that was left alone.

    python tests/e2e/kill.py --model tiny --variant multi_turn --moments 20

For each moment: a fresh folder, ``trinity run``, SIGKILL somewhere between the folder's first file and the end, then
``trinity run resume=DIR`` until it finishes. The end must have the digest of the run that was left alone, and a clean
audit. The seed of the moments is printed; the time that passes between processes is what it is, so a failure may need a
few tries to show again: ``--keep`` leaves the folders of failures behind.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FAKE = ("model=fake", "backend=fake", "engine=fake", "optim.lr=0.3")
SMALL = ("groups_per_step=4", "algorithm.group_size=4", "checkpoint.every=2", "tracker=[jsonl]", "threads=1")
DIGITS = ("taskset=[]", "+taskset@tasksets.digits=trinity_core.testing.fakes:Digits", "sampling.max_response=4")
VARIANTS: dict[str, tuple[str, ...]] = {
    "single_turn": DIGITS,
    "multi_turn": (
        "taskset=[guess]",
        "workflow=multi_turn",
        "environment=guess",
        "environment.max_delay_s=0.02",
        "sampling.max_response=4",
        "sampling.max_attempt_tokens=24",
    ),
    "offset": (*DIGITS, "sync.offset=1", "correction=[truncated_is]"),
    "given": (*DIGITS, "algorithm=sft", "tasksets.digits.demonstrations=true"),
}
"""What is played: pure workflows, worlds that answer after random delays, play one step ahead of training; and data that is
given and not played."""
STEPS = {"fake": 8, "tiny": 6, "smollm2": 4}
LONGEST_S = 900.0


@dataclass
class Trial:
    """What became of one run that was killed."""

    moment_s: float
    """Seconds after the run folder's first file."""
    kills: int
    resumes: int
    equal: bool
    audit: bool
    said: str = ""

    @property
    def ok(self) -> bool:
        return self.equal and self.audit


def model_words(model: str, folder: Path) -> tuple[str, ...]:
    """The words that select the model, its backend and its engine."""
    if model == "fake":
        return FAKE
    if model == "tiny":
        from trinity_core.testing.tiny import make_tiny

        make_tiny(folder / "tiny-model")
        return (f"model.path={folder / 'tiny-model'}", "backend=local", "engine=hf", "optim.lr=0.003")
    return ("model=smollm2", "backend=local", "engine=hf")


def reward_words(model: str, variant: str) -> tuple[str, ...]:
    """A random Llama never answers right: what it is trained on must give any text a score."""
    if model == "tiny":
        return ("reward=[]", "+reward@rewards.letters=trinity_core.testing.fakes:Letters")
    return ("reward=[]",) if variant == "multi_turn" else ()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "trinity_core.cli", *words]


def launch(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A run in a session of its own, its output in ``log``."""
    with log.open("ab") as out:
        return subprocess.Popen(
            command("run", *words),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )


def finish(words: Sequence[str], log: Path) -> float:
    """Let it run to its end; the seconds from the folder's first file to then."""
    process = launch(words, log)
    folder = Path(next(word.partition("=")[2] for word in words if word.startswith(("out=", "resume="))))
    began = wait_for(folder / "words.json", process)
    code = process.wait(timeout=LONGEST_S)
    if code != 0:
        raise RuntimeError(f"trinity run {' '.join(words)} ended with {code}:\n{log.read_text()[-3000:]}")
    return time.monotonic() - began


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> float:
    """The moment ``path`` appears, or the process ends."""
    limit = time.monotonic() + LONGEST_S
    while not path.exists() and process.poll() is None:
        if time.monotonic() > limit:
            raise RuntimeError(f"{path} did not appear within {LONGEST_S:.0f} s")
        time.sleep(0.002)
    return time.monotonic()


def kill_at(words: Sequence[str], log: Path, folder: Path, moment_s: float) -> bool:
    """SIGKILL ``moment_s`` after the folder's first file; whether it was still running then."""
    process = launch(words, log)
    began = wait_for(folder / "words.json", process)
    try:
        process.wait(timeout=max(0.0, began + moment_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        sweep(process.pid)
        return True
    return False


def sweep(session: int) -> None:
    """End what the killed process started and left behind (reward workers notice on their own, but later)."""
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        return


def ask(name: str, folder: Path) -> tuple[int, str]:
    """``trinity digest`` or ``trinity audit`` of a run."""
    done = subprocess.run(command(name, str(folder)), capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, (done.stdout + done.stderr if name == "audit" else done.stdout).strip()


def trial(
    words: Sequence[str], folder: Path, expected: str, moment_s: float, rng: random.Random, again: float
) -> Trial:
    """One run, killed at ``moment_s``; each resume is killed too with chance ``again``."""
    run, log = folder / "run", folder / "log.txt"
    kills = int(kill_at([*words, f"out={run}"], log, run, moment_s))
    resumes = 0
    while kills > resumes:
        resumes += 1
        if rng.random() < again:
            kills += kill_at([f"resume={run}"], log, run, rng.uniform(0.5, 2.0) + moment_s / 2)
        else:
            finish([f"resume={run}"], log)
    _, found = ask("digest", run)
    code, report = ask("audit", run)
    said = "" if code == 0 else report[-1500:]
    if found != expected:
        said += f"\ndigest {found}, expected {expected}"
    return Trial(moment_s, kills, resumes, found == expected, code == 0, said.strip())


def experiment(
    variant: str,
    model: str,
    *,
    moments: int,
    seed: int = 0,
    steps: int | None = None,
    again: float = 0.25,
    extra: Sequence[str] = (),
    keep: Path | None = None,
) -> list[Trial]:
    """``moments`` trials of one variant; prints a line for each."""
    rng = random.Random(f"{seed} {variant} {model}")
    with tempfile.TemporaryDirectory(prefix="trinity-kill-") as name:
        base = Path(name)
        parts = (*model_words(model, base), *VARIANTS[variant], *reward_words(model, variant))
        words = (*parts, *SMALL, f"steps={steps or STEPS[model]}", *extra)
        print(f"{variant} on {model}: trinity run {' '.join(words)}", flush=True)
        alone = base / "alone"
        seconds = finish([*words, f"out={alone}"], base / "alone.txt")
        _, expected = ask("digest", alone)
        print(f"  left alone: {seconds:.1f} s, digest {expected}", flush=True)
        trials = []
        for number in range(moments):
            folder = base / f"trial-{number}"
            folder.mkdir()
            try:
                found = trial(words, folder, expected, rng.uniform(0.0, seconds), rng, again)
            except RuntimeError as error:  # a resume that fails is a result, and the other moments go on
                found = Trial(float("nan"), 1, 1, False, False, str(error))
            trials.append(found)
            verdict = "equal, audit clean" if found.ok else f"FAILED\n{found.said}"
            print(f"  {number + 1:3d}  killed at {found.moment_s:6.2f} s, {found.kills} kill(s): {verdict}", flush=True)
            if keep is not None and not found.ok:
                shutil.copytree(folder, keep / f"{variant}-{number}", dirs_exist_ok=True)
                shutil.copytree(alone, keep / f"{variant}-alone", dirs_exist_ok=True)
            shutil.rmtree(folder)
    killed = sum(found.kills > 0 for found in trials)
    good = sum(found.ok for found in trials)
    print(f"  {variant} on {model}: {good} of {moments} equal and clean; {killed} were running when killed", flush=True)
    return trials


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(STEPS), default="fake")
    parser.add_argument("--variant", choices=[*VARIANTS, "all"], default="all")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments; the run's own is a word: seed=1")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--again", type=float, default=0.25, help="chance that a resume is killed too")
    parser.add_argument("--keep", type=Path, help="copy the folders of failed trials here")
    parser.add_argument("words", nargs="*", help="further words for trinity run")
    asked = parser.parse_args(argv)
    variants = list(VARIANTS) if asked.variant == "all" else [asked.variant]
    failed = 0
    for variant in variants:
        trials = experiment(
            variant,
            asked.model,
            moments=asked.moments,
            seed=asked.seed,
            steps=asked.steps,
            again=asked.again,
            extra=asked.words,
            keep=asked.keep,
        )
        failed += sum(not found.ok for found in trials)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
