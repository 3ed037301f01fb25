"""How many compiled matrix products are kept.

On the CPU oneDNN compiles a product for every shape it meets and torch keeps what it compiled, each in a store of some thousand
entries. Lengths differ in every step, so both fill up, half a megabyte for each shape: a small model's process grows by 900 MB over its
first 150 steps. A step comes back to a few dozen shapes; more need not be kept.
"""

from __future__ import annotations

import os

STORES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
KEPT = 128


def keep_few() -> None:
    """Bound both stores, before the first product asks. A value that the environment has stays."""
    for name in STORES:
        os.environ.setdefault(name, str(KEPT))
