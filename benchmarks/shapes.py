"""The matrices of SmolLM2-135M, and how long their products take at least."""

from __future__ import annotations

LAYERS, HIDDEN, INNER, VOCABULARY, KEYS = 30, 576, 1536, 49152, 192
LINEAR = (
    (HIDDEN, HIDDEN, 2),  # q, o
    (HIDDEN, KEYS, 2),  # k, v
    (HIDDEN, INNER, 2),  # gate, up
    (INNER, HIDDEN, 1),  # down
)
"""(columns in, columns out, how many in a layer)."""
HEAD = (HIDDEN, VOCABULARY)
LINEAR_PARAMETERS = LAYERS * sum(inner * outer * count for inner, outer, count in LINEAR)
PARAMETERS = LINEAR_PARAMETERS + HIDDEN * VOCABULARY
