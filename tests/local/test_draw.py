"""Drawing a token: the exact inverse of the cumulative distribution, beside a float64 reference of one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trinity_core.builtins.engines.hf_sample import BLOCK, draw, truncate
from trinity_core.types import Sampling

SIZES = [1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 5000]
EDGES = [0.0, 2.0**-53, 1e-9, 0.25, 0.5, 0.75, 1 - 1e-9, 1 - 2.0**-53]


def logits(size: int, dtype: torch.dtype, *, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    """One row for each of EDGES."""
    made = torch.randn(len(EDGES), size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread
    return made.to(dtype)


def expected(logits_RV: torch.Tensor, uniform_R: torch.Tensor, p_RV: torch.Tensor | None = None) -> torch.Tensor:
    """numpy.searchsorted in the running sum of all probabilities."""
    p = (torch.softmax(logits_RV, -1) if p_RV is None else p_RV).double().numpy()
    found = []
    for row, uniform in zip(p, uniform_R.tolist()):
        cdf = np.cumsum(row)
        found.append(int(np.searchsorted(cdf, min(uniform * cdf[-1], np.nextafter(cdf[-1], 0)), side="right")))
    return torch.tensor(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_a_token_is_the_inverse_of_the_running_sum(size: int, dtype: torch.dtype) -> None:
    uniform_R = torch.tensor(EDGES, dtype=torch.float64)
    for seed, spread in enumerate((0.0, 0.1, 3.0, 100.0)):
        rows = logits(size, dtype, spread=spread, seed=seed)
        token_R, logp_R = draw(rows, uniform_R, [Sampling()] * len(rows))
        p_R = torch.softmax(rows, -1).gather(1, token_R[:, None])[:, 0]
        assert bool((p_R > 0).all())
        assert on_the_border_or_equal(token_R, expected(rows, uniform_R), rows, uniform_R)
        exact = torch.log_softmax(rows.double(), -1).gather(1, token_R[:, None])[:, 0]
        assert logp_R.dtype == dtype
        assert float((logp_R.double() - exact).abs().max()) <= (1e-12 if dtype == torch.float64 else 4e-6)


def on_the_border_or_equal(
    token_R: torch.Tensor, other_R: torch.Tensor, logits_RV: torch.Tensor, uniform_R: torch.Tensor
) -> bool:
    """Where two orders of addition disagree, the number lies within 1e-12 of a border."""
    cdf_RV = torch.softmax(logits_RV, -1).double().cumsum(-1)
    for row in (token_R != other_R).nonzero().flatten().tolist():
        at = uniform_R[row] * cdf_RV[row, -1]
        low, high = sorted((int(token_R[row]), int(other_R[row])))
        if float((cdf_RV[row, low:high] - at).abs().max()) > 1e-12:
            return False
    return True


def test_ten_thousand_numbers_meet_the_reference_but_for_rounding_at_borders() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = (torch.randn(50, 3000, generator=generator) * 2).repeat_interleave(200, 0)
    uniform_R = torch.rand(len(rows), generator=generator, dtype=torch.float64)
    token_R, _ = draw(rows, uniform_R, [Sampling()] * len(rows))
    assert on_the_border_or_equal(token_R, expected(rows, uniform_R), rows, uniform_R)


def test_a_number_on_a_border_belongs_to_the_token_above_it() -> None:
    # 2·BLOCK equal tokens: p = 2^-9, every sum is exact, so is every border
    size = 2 * BLOCK
    numbers = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, size - 1]
    uniform_R = torch.tensor([n / size for n in numbers], dtype=torch.float64)
    token_R, _ = draw(torch.zeros(len(numbers), size), uniform_R, [Sampling()] * len(numbers))
    assert token_R.tolist() == numbers
    token_R, _ = draw(
        torch.zeros(5, size), torch.nextafter(uniform_R[1:], torch.zeros(5, dtype=torch.float64)), [Sampling()] * 5
    )
    assert token_R.tolist() == [n - 1 for n in numbers[1:]]


def test_what_cannot_be_drawn_never_is() -> None:
    # 0 probability in front, between and behind; only tokens 300 and 700 are possible
    row = torch.full((1, 1000), -torch.inf)
    row[0, 300], row[0, 700] = 0.0, 0.0
    uniform_R = torch.tensor(EDGES, dtype=torch.float64)
    token_R, logp_R = draw(row.repeat(len(EDGES), 1), uniform_R, [Sampling()] * len(EDGES))
    assert token_R.tolist() == [300, 300, 300, 300, 700, 700, 700, 700]
    assert torch.allclose(logp_R, torch.log(torch.tensor(0.5)))
    far = torch.zeros(1, 1000)
    far[0, 5] = -2e4  # finite, and yet its probability is 0
    assert draw(far, torch.tensor([0.0051], dtype=torch.float64), [Sampling()])[0].item() != 5


@pytest.mark.parametrize("limits", [{"top_k": 3}, {"top_p": 0.6}, {"top_k": 40, "top_p": 0.9}, {"top_p": 1e-6}])
def test_truncated_rows_draw_from_what_is_left(limits: Any) -> None:
    rows, uniform_R = logits(700, torch.float64), torch.tensor(EDGES, dtype=torch.float64)
    sampling = Sampling(**limits)
    token_R, logp_R = draw(rows, uniform_R, [sampling] * len(rows))
    left = truncate(torch.softmax(rows, -1), [sampling] * len(rows))
    assert torch.equal(token_R, expected(rows, uniform_R, left))
    assert torch.allclose(logp_R, torch.log_softmax(rows, -1).gather(1, token_R[:, None])[:, 0])


def test_rows_do_not_touch_each_other() -> None:
    rows, uniform_R = logits(700, torch.float32), torch.tensor(EDGES, dtype=torch.float64)
    kinds = [Sampling(), Sampling(temperature=0.0), Sampling(top_k=2), Sampling(temperature=0.3)] * 2
    token_R, logp_R = draw(rows, uniform_R, kinds)
    for i, kind in enumerate(kinds):
        token, logp = draw(rows[i : i + 1], uniform_R[i : i + 1], [kind])
        assert token.item() == token_R[i].item() and logp.item() == logp_R[i].item()
    assert token_R[1].item() == rows[1].argmax().item()
