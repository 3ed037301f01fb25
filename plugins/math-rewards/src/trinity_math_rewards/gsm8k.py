"""GSM8K: grade-school word problems (Cobbe et al., arXiv:2110.14168), from a file, the hub, or the sample shipped here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trinity_core.errors import DataError
from trinity_core.protocols import RunContext, Taskset
from trinity_core.types import Task
from trinity_math_rewards.rows import Rows, read_jsonl, task_id

SYSTEM = r"Reason step by step, and put your final answer within \boxed{}."
HUB = "openai/gsm8k"
SAMPLE = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Gsm8k(Taskset):
    """Word problems in the format of GSM8K: ``{"question": …, "answer": "working … #### 18"}``.

    The gold answer is what follows the last ``####``, without ``$`` and thousands commas. A row without one is refused with
    its line.
    """

    path: str = "hub"
    """``hub`` (openai/gsm8k, needs the ``datasets`` library), ``sample`` (24 problems shipped with this package), a
    ``.jsonl`` file, or a folder with ``train.jsonl`` and ``test.jsonl``."""
    split: Literal["train", "test"] = "train"
    """Which rows: of the hub, of the sample, or of a folder."""
    system: str | None = SYSTEM
    """System message; null: none."""
    limit: int | None = None
    """First rows only; null: all."""

    @classmethod
    def example(cls, tmp: Path) -> Gsm8k:
        """One that needs no network, for the conformance kit."""
        return cls(path="sample")

    def open(self, run: RunContext | None = None) -> Rows:
        rows = (
            self._hub()
            if self.path == "hub"
            else read_jsonl(SAMPLE if self.path == "sample" else Path(self.path), self.split, self.limit)
        )
        return Rows([self._task(row, index, where) for index, (row, where) in enumerate(rows)])

    def _hub(self) -> Iterator[tuple[dict[str, Any], str]]:
        local = "or give a local file: path=FOLDER with train.jsonl and test.jsonl, or path=sample"
        try:
            import datasets
        except ImportError as error:
            raise DataError(
                f"gsm8k: path=hub needs the datasets library. pip install 'trinity-plugin-math-rewards[hub]', {local}"
            ) from error
        try:
            rows = datasets.load_dataset(HUB, "main", split=self.split)
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise DataError(
                f"gsm8k: {HUB} could not be fetched ({reason[:200]}). Check the connection and HF_HUB_OFFLINE, {local}"
            ) from error
        for index, row in enumerate(rows.select(range(min(len(rows), self.limit))) if self.limit is not None else rows):
            yield dict(row), f"{HUB}/{self.split}:{index + 1}"

    def _task(self, row: dict[str, Any], index: int, where: str) -> Task:
        question, answer = row.get("question"), row.get("answer")
        if not isinstance(question, str) or not isinstance(answer, str) or "####" not in answer:
            raise DataError(
                f'{where}: needs {{"question": text, "answer": text with "#### number"}}, got {str(row)[:120]}'
            )
        system = ({"role": "system", "content": self.system},) if self.system else ()
        return Task(
            task_id("gsm8k", self.split, index),
            (*system, {"role": "user", "content": question.strip()}),
            gold_of(answer),
        )


def gold_of(answer: str) -> str:
    """What follows the last ``####``, as a bare number."""
    return answer.rpartition("####")[2].strip().replace(",", "").removeprefix("$").strip()
