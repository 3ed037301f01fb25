"""One update of SmolLM2-135M beside a plain padded transformers loop with the same update: time, the share of it that matrix
products alone would take, and peak memory.

Eight groups of eight attempts, prompts of 128 tokens, answers of 32, random tokens, every attempt with credit: nothing is skipped,
and no two answers begin alike. Each side in a process of its own, one after the other. Before anything is timed, the two
gradients are compared in float32.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import common

SIDE = Path(__file__).parent / "sides" / "training_side.py"


def side(who: str, *words: str) -> dict:
    ran = common.run([sys.executable, SIDE, who, *words])
    return common.last_json(ran.stdout) | {"peak_mb": ran.peak_rss_mb}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    busy = common.quiet_or_warn()
    gate = side("parity")
    ours, plain = side("trinity"), side("plain")
    ours_memory, plain_memory = side("trinity", "--tokens", "4096"), side("plain", "--tokens", "4096")
    figures = {
        "parity_float32": gate["distance"],
        "trinity_s": ours["median_s"],
        "plain_s": plain["median_s"],
        "speed_x": plain["median_s"] / ours["median_s"],
        "trinity_cells": ours["cells"],
        "plain_tokens": plain["cells"],
        "products_alone_s": ours["floor_s"],
        "products_share": ours["floor_s"] / ours["median_s"],
        "trinity_4096_peak_mb": ours_memory["peak_mb"],
        "plain_4096_peak_mb": plain_memory["peak_mb"],
        "memory_share": ours_memory["peak_mb"] / plain_memory["peak_mb"],
    }
    limits = {"parity_float32": "<= 1e-5", "speed_x": ">= 3", "products_share": ">= 0.6", "memory_share": "< 0.5"}
    notes = [
        f"median of five updates after one; forward, backward, gradient norm and AdamW; {common.dtype()} products, float32 weights",
        f"the plain loop pads, computes all logits and takes {plain['micro_rows']} rows at a time, as many as its memory allows",
        "products_alone_s: the products of the layers and the head, forward and backward, each as fast as measured alone in the same process on the same shapes",
        "4096 tokens: sixteen sequences of 256 tokens that share nothing, an answer of 128 each; one pass of the plain loop, resident memory of the process, weights and moments included",
    ]
    common.finish("training", figures, limits, notes=notes, busy=busy)


if __name__ == "__main__":
    main()
