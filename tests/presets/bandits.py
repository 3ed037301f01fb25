"""What each preset needs beside its name to learn ``say 7`` → ``7`` (or a guessing game) with the table policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trinity_core.config.hydra_plugin import options
from trinity_core.protocols import Taskset
from trinity_core.types import Task

PRESETS = options("algorithm")
DIGITS = "trinity_core.testing.fakes:Digits"
FAST = ("recipe=fake", "tracker=[jsonl]", "buffer=memory", "checkpoint.every=0", "steps=30")
EXPERT = (f"+taskset@tasksets.expert={DIGITS}", "tasksets.expert.demonstrations=true", "tasksets.expert.weight=0.25")
TURNS = (
    "taskset=[guess]",
    "tasksets.guess.high=4",
    "environment=guess",
    "workflow=multi_turn",
    "workflow.max_turns=2",
    "reward=[]",
    "taskset@eval.tasksets.digits=guess",
    "eval.tasksets.digits.high=4",
    "eval.limit=40",
    "sampling.max_response=2",
    "sampling.max_attempt_tokens=8",
)
NEEDS: dict[str, tuple[str, ...]] = {
    "ppo": ("critic.lr=0.3", "algorithm.group_size=8"),
    "remax": ("groups_per_step=16",),
    "mix": EXPERT,
    "chord": EXPERT,
    "sft": ("tasksets.digits.demonstrations=true",),
    "cpt": ("taskset=[tests.presets.bandits:Text]",),
    "dpo": ("tasksets.digits.preferences=true", "steps=15"),
    "ipo": ("tasksets.digits.preferences=true", "steps=15"),
    "dapo": ("algorithm.group_size=8", "steps=15"),
    "multi_step_grpo": TURNS,
    "gigpo": TURNS,
}
TAUGHT = ("on_policy_distill", "jsd")
"""Presets that learn from a teacher."""


def words_for(preset: str, teacher: Path | None = None) -> list[str]:
    """The words of a run of ``preset`` on the table policy; ``teacher`` is the folder of one that knows the digits."""
    words = [*FAST, f"algorithm={preset}", *NEEDS.get(preset, ())]
    return [*words, f"teacher.path={teacher}", "groups_per_step=16"] if preset in TAUGHT else words


@dataclass(frozen=True)
class Text(Taskset):
    """Raw text: the conversation as the model reads it, question and answer."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, row: int) -> Task:
        if not 0 <= row < 10:
            raise IndexError(row)
        return Task(str(row), (), given={"expert": f"say {row}: {row}"})

    def gives(self) -> frozenset[str]:
        return frozenset({"expert"})


def words_on_a_model(preset: str, model: Path, teacher: Path) -> list[str]:
    """The words of two steps of ``preset`` on a model folder: rewards that any text gets, short answers.

    ``teacher`` is the folder of other weights: a model that is its own teacher has nothing to learn.
    """
    words = [
        f"model.path={model}",
        "model.dtype=float32",
        "tracker=[jsonl]",
        "buffer=memory",
        "taskset=[]",
        f"+taskset@tasksets.digits={DIGITS}",
        "reward=[]",
        "+reward@rewards.letters=trinity_core.testing.fakes:Letters",
        "steps=2",
        "groups_per_step=4",
        "algorithm.group_size=4",
        "sampling.max_response=6",
        "optim.lr=1e-3",
        f"algorithm={preset}",
    ]
    if preset in ("multi_step_grpo", "gigpo"):
        # a random model never finds the number: what counts is what it says
        words += ["environment=guess", "workflow=multi_turn", "workflow.max_turns=2", "sampling.max_attempt_tokens=12"]
        words = [word for word in words if DIGITS not in word and word != "taskset=[]"] + ["taskset=[guess]"]
    if preset in ("mix", "chord", "sft", "cpt", "dpo", "ipo"):
        words += [word for word in NEEDS[preset] if "taskset" in word]
    if preset == "cpt":
        words = [word for word in words if DIGITS not in word and word != "taskset=[]"]
    if preset in TAUGHT:
        words += [f"teacher.path={teacher}", "teacher.dtype=float32"]
    return words
