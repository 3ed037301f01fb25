"""A digest of weights is a sum of bit patterns, so that how they are cut and fused does not matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trinity_core.algo.digest import digest_tensors


def test_the_digest_is_the_sum_of_bit_patterns():
    # 1.0 is 0x3f800000 in float32, 0x3f80 in bfloat16, 0x3ff0000000000000 in float64; -0.0 is the sign bit alone
    assert digest_tensors([("a", torch.tensor([1.0, -0.0]))]) == 0x3F800000 + 0x80000000
    assert digest_tensors([("a", torch.tensor([1.0, -0.0], dtype=torch.bfloat16))]) == 0x3F80 + 0x8000
    assert digest_tensors([("a", np.array([1.0]))]) == 0x3FF0000000000000


def test_the_digest_wraps_at_two_to_the_64():
    # five times 0xbff0000000000000 (-1.0) is 0x3bfb0000000000000: the carry past 64 bits is lost
    assert digest_tensors([("a", np.full(5, -1.0))]) == (5 * 0xBFF0000000000000) % 2**64


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8]
)
def test_cutting_fusing_and_order_change_nothing(dtype):
    whole = torch.arange(24).to(dtype).reshape(4, 6)
    parts = [("b", whole[:, 3:]), ("a", whole[:, :3])]
    assert digest_tensors(parts) == digest_tensors([("w", whole)])


def test_numpy_and_torch_agree():
    array = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    assert digest_tensors([("a", array)]) == digest_tensors([("a", torch.from_numpy(array))])


def test_one_changed_bit_changes_the_digest():
    weights = np.random.default_rng(0).standard_normal(100)
    before = digest_tensors([("w", weights)])
    weights[50] = np.nextafter(weights[50], 9)
    assert digest_tensors([("w", weights)]) != before
