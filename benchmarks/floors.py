"""The two floors of this machine: how fast it multiplies matrices, by dtype and shape, and how fast it moves memory; and what a
training pass and a decode step of SmolLM2-135M need at least."""

from __future__ import annotations

import argparse
import time

import common
import torch
from shapes import HEAD, LINEAR, LINEAR_PARAMETERS, PARAMETERS

ROWS = (64, 512, 3072)
"""A wave of 64; a small micro-batch; the cells of eight groups at prompt 128, response 32."""


def seconds(function, repeats: int = 9) -> float:
    function()
    function()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        taken.append(time.perf_counter() - begin)
    return common.median(taken)


def rate(rows: int, inner: int, outer: int, dtype: torch.dtype) -> float:
    """GFLOP/s of ``[rows, inner] @ [inner, outer]``, over several weights, as layers have them."""
    x = torch.randn(rows, inner).to(dtype)
    weights = torch.randn(max(1, min(30, 2**25 // (inner * outer))), outer, inner).to(dtype)

    def products() -> None:
        for weight in weights:
            torch.nn.functional.linear(x, weight)

    with torch.no_grad():
        return 2 * rows * inner * outer * len(weights) / seconds(products) / 1e9


def bandwidth() -> float:
    """GB/s of a copy of 512 MB: read once, written once."""
    source = torch.empty(2**27, dtype=torch.float32).fill_(1.0)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / seconds(lambda: target.copy_(source), 5) / 1e9


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    busy = common.quiet_or_warn()
    figures: dict[str, float] = {"copy_gb_per_s": bandwidth()}
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float32, "float32")):
        for rows in ROWS:
            rates = [(rate(rows, inner, outer, dtype), count * inner * outer) for inner, outer, count in LINEAR]
            work = sum(amount for _, amount in rates)
            figures[f"layers_{name}_{rows}_rows_gflop_per_s"] = work / sum(amount / one for one, amount in rates)
        figures[f"head_{name}_64_rows_gflop_per_s"] = rate(64, *HEAD, dtype)
    best, size = common.dtype(), 2 if common.dtype() == "bfloat16" else 4
    layers, head = (figures[f"{part}_{best}_64_rows_gflop_per_s"] * 1e9 for part in ("layers", "head"))
    products = 64 * 2 * (LINEAR_PARAMETERS / layers + HEAD[0] * HEAD[1] / head)
    weights = size * PARAMETERS / (figures["copy_gb_per_s"] / 2 * 1e9)
    figures["decode_step_64_rows_floor_s"] = max(products, weights)
    figures["decode_floor_tokens_per_s"] = 64 / figures["decode_step_64_rows_floor_s"]
    training = figures[f"layers_{best}_3072_rows_gflop_per_s"] * 1e9
    figures["training_floor_cells_per_s"] = training / (6 * LINEAR_PARAMETERS)
    notes = [
        f"layers: the seven matrices of a layer of SmolLM2-135M, weighted by their work; {LINEAR_PARAMETERS:,} parameters in 30 layers, {HEAD[0] * HEAD[1]:,} in the head.",
        f"A decode step of 64 rows needs 2 operations a parameter and row, and reads every {best} weight once; the floor is the longer of the two.",
        f"A training pass needs 6 operations a parameter and cell (forward 2, backward 4) outside the head; the floor counts products alone, in {best}.",
    ]
    common.finish("floors", figures, notes=notes, busy=busy)


if __name__ == "__main__":
    main()
