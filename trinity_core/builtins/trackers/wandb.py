"""Weights & Biases: explicit step axes, one run over all resumes, offline without an account."""

from __future__ import annotations

import logging
import netrc
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from trinity_core.errors import PluginLoadError
from trinity_core.protocols import RunContext, Tracker

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wandb(Tracker):
    """Logs to Weights & Biases.

    Training metrics are ``train/<name>`` over the axis ``train/step``, evaluations ``eval/<taskset>/<name>`` over
    ``eval/step``: both axes are logged, never the library's own counter, so nothing is dropped for arriving late. The id
    is saved with the run's state and used again by a resume. ``WANDB_MODE`` is respected; where it is unset and no account
    is set up (``WANDB_API_KEY``, or ``wandb login``) the run is kept offline in its folder, and one line says so. The
    config that is sent is the redacted one. Needs ``pip install 'trinity-core[wandb]'``.
    """

    project: str = "trinity"
    """Project that the run belongs to."""
    entity: str | None = None
    """User or team; null: the account's default."""
    title: str | None = None
    """Display name; null: the name of the run folder."""
    group: str | None = None
    """Group of runs, such as the seeds of one experiment."""
    tags: tuple[str, ...] = ()
    """Words to find the run by."""

    def open(self, run: RunContext) -> LiveWandb:
        try:
            import wandb
        except ImportError as error:
            raise PluginLoadError(
                f"tracker wandb needs the wandb library ({error}). pip install 'trinity-core[wandb]'"
            ) from error
        return LiveWandb(self, run, wandb)


class LiveWandb(Tracker):
    """One run at Weights & Biases. Nothing is created before the run has started."""

    def __init__(self, config: Wandb, run: RunContext, wandb: Any) -> None:
        self.config = config
        self.id = re.sub(r"[^A-Za-z0-9_-]", "-", run.id)[:64]
        """Its id there: ours, unless a saved state says otherwise."""
        self._run_folder = run.dir
        self._wandb = wandb
        self._live: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"id": self.id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.id = str(state["id"])

    def started(self, run: Mapping[str, Any]) -> None:
        config = self.config
        self._live = self._wandb.init(
            project=config.project,
            entity=config.entity,
            name=config.title or self._run_folder.name,
            group=config.group,
            tags=list(config.tags) or None,
            id=self.id,
            resume="allow",
            mode=mode(),
            dir=str(self._run_folder),
            config=dict(run.get("config", {})),
            # The console is ours; code and git remotes are nobody's business unless asked for.
            settings=self._wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
        )
        for space in ("train", "eval"):
            self._live.define_metric(f"{space}/step")
            self._live.define_metric(f"{space}/*", step_metric=f"{space}/step")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._live.log({"train/step": step, **{f"train/{name}": value for name, value in metrics.items()}})

    def evaluated(self, step: int, taskset: str, result: Mapping[str, Any]) -> None:
        kept = {name: value for name, value in result.items() if name not in ("step", "taskset") and value is not None}
        values = {f"eval/{taskset}/{name}": value for name, value in kept.items()}
        self._live.log({"eval/step": step, **values})

    def finished(self, summary: Mapping[str, Any]) -> None:
        if self._live is None:
            return
        self._live.summary.update({f"summary/{name}": value for name, value in summary.items() if name != "next"})
        self._end(0 if summary.get("status") == "finished" else 1)

    def close(self) -> None:
        """A run that nobody finished has failed."""
        self._end(1)

    def _end(self, code: int) -> None:
        if self._live is not None:
            self._live.finish(exit_code=code)
            self._live = None


def mode() -> str:
    """What ``WANDB_MODE`` says; else *online* with an account and *offline* without.

    Said explicitly, because the library reads the variable once per process and two runs may share one.
    """
    said = os.environ.get("WANDB_MODE")
    if said:
        return said
    if has_account():
        return "online"
    log.warning(
        "wandb: no account is set up, so the run stays offline in its folder. `wandb sync FOLDER` sends it later"
    )
    return "offline"


def has_account() -> bool:
    """Whether the environment, or what ``wandb login`` wrote, holds a key. The key itself is never read into a variable."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except FileNotFoundError:
        return False
    except netrc.NetrcParseError as error:
        log.warning("wandb: %s; taken as no account", error)
        return False
