"""A digest of weights that sharding, fusing and order leave alone: what a receiver holds, compared in one number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 22
"""Elements summed at a time: bounds the memory of the widened copy."""


def digest_tensors(named: Iterable[tuple[str, Any]]) -> int:
    """Sum mod 2^64 of the bit patterns of all elements, each read as an unsigned integer of its own width.

    ``named`` gives (name, array): numpy arrays or torch tensors of any dtype. Names do not enter: a tensor cut into
    shards, or fused with others, has the digest of the whole, in any order.

    >>> one = np.array([1.0], dtype=np.float32)  # bits 0x3f800000
    >>> digest_tensors([("a", one), ("b", one)]) == 2 * 0x3F800000
    True
    """
    total = 0
    for _, array in named:
        bits = _bits(array)
        for start in range(0, len(bits), _CHUNK):
            total += int(bits[start : start + _CHUNK].sum(dtype=np.uint64))
    return total % (1 << 64)


def _bits(array: Any) -> NDArray[Any]:
    """The elements as a flat array of unsigned integers."""
    if hasattr(array, "detach"):
        array = _torch_integers(array)
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(np.dtype(f"f{flat.dtype.itemsize // 2}"))
    return flat.view(np.dtype(f"u{flat.dtype.itemsize}"))


def _torch_integers(tensor: Any) -> NDArray[Any]:
    """numpy knows neither bfloat16 nor float8: torch reads their bits as integers of the same width first."""
    import torch

    tensor = tensor.detach().cpu().contiguous()
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(integers[tensor.element_size()]).numpy()
