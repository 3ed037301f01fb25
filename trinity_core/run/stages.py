"""Stages one after the other: each in a folder of its own, each from the weights of the one before.

stages.json      the words typed, and each stage's config as it was checked before the first started
<n>-<name>/      the run of a stage; ``export/step-<n>/`` in it is what the next one starts from
summary.json     of the whole, written at the end, also after a failure
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trinity_core.config.check import check
from trinity_core.config.compose import compose, composer
from trinity_core.config.plain import to_plain
from trinity_core.config.schema import RunConfig
from trinity_core.config.stages import Stage, plan_stages, quoted, refuse_alone
from trinity_core.errors import ConfigError, RunError, TrinityError
from trinity_core.run import checkpoint, start
from trinity_core.run.export import export_whole
from trinity_core.run.folder import RunFolder, read_json, write_json
from trinity_core.run.resume import differences, expand

FILE = "stages.json"
EXPORT = "export"
WITH_RESUME = ("resume", "resume_config")


class StagedRun:
    """A run of stages in its folder, which it holds until :meth:`run` ends."""

    def __init__(self, folder: RunFolder, stages: Sequence[Stage], now: Sequence[str] = (), *, fresh: bool) -> None:
        self.folder = folder
        self.stages = list(stages)
        self.now = list(now)
        """Words of this command line for a stage that goes on."""
        self.fresh = fresh
        self.status = {stage.number: "waiting" for stage in stages}

    @classmethod
    def new(cls, stages: Sequence[Stage], words: Sequence[str], *, out: Path | None) -> StagedRun:
        """In a new folder; ``words`` are what was typed, with or without ``out=``."""
        folder = RunFolder.create(out)
        _remember(folder.path, stages, [word for word in words if not word.lstrip("+").startswith("out=")])
        return cls(folder, stages, fresh=True)

    @classmethod
    def again(cls, path: Path, words: Sequence[str]) -> StagedRun:
        """A run of stages goes on: what has ended stays, what was interrupted resumes, what had not begun follows.

        Raises :class:`ConfigError` for other words, and where a stage that has not begun would be another than was checked.
        """
        for word in words:
            if word.lstrip("+").partition("=")[0] not in WITH_RESUME:
                raise ConfigError(
                    f"{word}: a run of stages goes on as it was typed. For one stage: trinity run resume={path}/N-NAME {word}, "
                    f"then trinity run resume={path}"
                )
        now = [word for word in words if "resume_config=" in word]
        saved = read_json(path / FILE, "the list of stages")
        with composer() as loader:
            stages = plan_stages(loader, saved["words"])
        names, then = [stage.name for stage in stages], [entry["name"] for entry in saved["stages"]]
        if names != then:
            raise ConfigError(
                f"resume={path}: its stages were {', '.join(then)} and are now {', '.join(names) or 'none'}, and nobody typed that "
                "(a changed recipe?). Put the recipe back, or start a new run"
            )
        if not any(word.endswith("=new") for word in now):
            for stage, entry in zip(stages, saved["stages"]):
                if not _began(path / stage.folder):
                    _refuse_changes(path, stage, entry["config"])
        folder = RunFolder(path.resolve()).hold()
        _remember(folder.path, stages, saved["words"])
        return cls(folder, stages, now, fresh=False)

    def run(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Every stage that has not ended yet. Returns the summary of the whole; raises what stopped it, with the exit code that
        the stage alone would have had. ``say`` is told when a stage begins."""
        began, error = time.time(), None
        current = self.stages[0]
        try:
            for current in self.stages:
                self._stage(current, say)
        except TrinityError as caught:
            error, code = caught, caught.exit_code
        except KeyboardInterrupt:
            error, code = RunError("interrupted"), 130
        try:
            if error is None:
                return self._write(began)
            self.status[current.number] = "interrupted" if code > 128 else "failed"
            message = f"{current}: {error}"
            if self.fresh and not any((self.folder.path / stage.folder).exists() for stage in self.stages):
                (self.folder.path / FILE).unlink()
                self.folder.forget()  # the same words can be tried again
            else:
                message += f"\nThe stages go on with: trinity run resume={self.folder.path}"
                self._write(began, message)
            stopped = RunError(message)
            stopped.exit_code = code
            raise stopped from error
        finally:
            self.folder.close()

    def rows(self) -> list[dict[str, Any]]:
        """By stage: what its own summary says, and what became of it."""
        kept = ("steps", "reward", "train_seconds", "eval_before", "eval_after", "weights_sha256")
        found = []
        for stage in self.stages:
            folder = self.folder.path / stage.folder
            path = folder / "summary.json"
            summary = read_json(path, "the summary") if path.is_file() else {}
            row = {"number": stage.number, "name": stage.name, "dir": str(folder), "status": self.status[stage.number]}
            found.append(row | {key: summary.get(key) for key in kept})
        return found

    def _stage(self, stage: Stage, say: Callable[[str], None]) -> None:
        """Run, resume or skip one stage, and see that the next can start from it."""
        folder = self.folder.path / stage.folder
        if not _ended(folder):
            going_on = _began(folder)
            say(f"{stage} of {len(self.stages)}{', resumed' if going_on else ''}: {folder}")
            if going_on:
                words = expand([quoted("resume", str(folder)), *self.now])
                start(_config(words), words)
            else:
                words = [*stage.words, *self._weights(stage)]
                start(_config(words), words, out=folder)
            gc.collect()  # parts know each other: without this a model stays in memory beside the next one
        self.status[stage.number] = "finished"
        following = self.stages[stage.number : stage.number + 1]
        if any(not _ended(self.folder.path / after.folder) for after in following):
            _export(stage, folder)

    def _weights(self, stage: Stage) -> list[str]:
        """The word with which ``stage`` starts from the weights of the one before."""
        if stage.number == 1:
            return []
        before = self.stages[stage.number - 2]
        return [quoted("model.path", str(_exported(self.folder.path / before.folder)))]

    def _write(self, began: float, error: str | None = None) -> dict[str, Any]:
        """The summary of the whole, as far as it came."""
        rows = self.rows()
        status = next((row["status"] for row in rows if row["status"] != "finished"), "finished")
        ended = [row for row in rows if row["steps"] is not None]
        last = ended[-1] if ended else {}
        summary: dict[str, Any] = {
            "status": status,
            "dir": str(self.folder.path),
            "stages": rows,
            "steps": sum(row["steps"] for row in ended),
            "train_seconds": round(sum(row["train_seconds"] for row in ended), 3),
            "wall_seconds": round(time.time() - began, 3),
            "reward": last.get("reward"),
            "eval_before": rows[0]["eval_before"],
            "eval_after": last.get("eval_after"),
            "weights_sha256": last.get("weights_sha256"),
            "next": [f"trinity export {rows[-1]['dir']} MODEL_DIR"],
        }
        if error is not None:
            summary |= {"error": error, "next": [f"trinity run resume={self.folder.path}"]}
        write_json(self.folder.path / "summary.json", summary)
        return summary


def _remember(folder: Path, stages: Sequence[Stage], words: Sequence[str]) -> None:
    planned = [{"name": stage.name, "config": to_plain(stage.config)} for stage in stages]
    write_json(folder / FILE, {"words": list(words), "stages": planned})


# --- one stage --------------------------------------------------------------------------------------------------------


def _began(folder: Path) -> bool:
    return (folder / "words.json").is_file()


def _ended(folder: Path) -> bool:
    """Whether all the steps it was last asked for are done."""
    from omegaconf import OmegaConf

    if not (folder / "summary.json").is_file():
        return False
    summary = read_json(folder / "summary.json", "the summary")
    steps = int(OmegaConf.load(folder / "config.yaml").steps)
    return bool(summary["status"] == "finished" and summary["steps"] >= steps)


def _config(words: Sequence[str]) -> RunConfig:
    config = check(compose(words))
    refuse_alone(config)
    return config


def _exported(folder: Path) -> Path:
    """Where the weights of a stage's newest checkpoint are, or will be. Its name has the step: a stage that somebody trains
    further never passes for what it was."""
    last = checkpoint.newest(folder / "checkpoints")
    if last is None:
        raise RunError(f"{folder}: no checkpoint, so there is nothing to start the next stage from")
    return folder / EXPORT / last.name


def _export(stage: Stage, folder: Path) -> None:
    """The stage's weights as a plain model folder, unless they are there."""
    target = _exported(folder)
    if target.is_dir():
        return
    try:
        target.parent.mkdir(exist_ok=True)
        export_whole(folder, target)
    except TrinityError:
        raise
    except NotImplementedError as error:
        raise RunError("its backend exports no model folder, so nothing can start from its weights") from error
    except Exception as error:
        raise RunError(f"its weights could not be exported to {target} ({type(error).__name__}: {error})") from error


def _refuse_changes(path: Path, stage: Stage, then: Any) -> None:
    """A stage that has not begun is the one that was checked when the run started."""
    for where, before, today in differences(then, to_plain(stage.config)):
        raise ConfigError(
            f"resume={path}: {stage}: {where} was {before!r} and is now {today!r}, and nobody typed that (a changed file or "
            "plugin?). Put it back, or take the new config with resume_config=new"
        )
